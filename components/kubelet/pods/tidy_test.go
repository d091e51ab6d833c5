package pods

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/internal/testwait"
)

// TestDeadContainers: of containers that have ended as many are kept as the
// configuration says, and the newest always.
func TestDeadContainers(t *testing.T) {
	none, two, all := 0, 2, -1
	for name, c := range map[string]struct {
		dead DeadContainers
		want int
	}{
		"as usual":              {DeadContainers{}, 2},
		"none":                  {DeadContainers{Each: &none}, 1},
		"two":                   {DeadContainers{Each: &two}, 3},
		"all":                   {DeadContainers{Each: &all}, 5},
		"two, but none in all":  {DeadContainers{Each: &two, All: &none}, 1},
		"of those that are old": {DeadContainers{Each: &none, MinAge: time.Hour}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, crifake.New("busybox:1"))
			b.host.CrashMax, b.host.Dead = time.Millisecond, c.dead
			b.add(newPod("a", nil))
			for restarts := range int32(5) {
				b.await("a", fmt.Sprintf("restarted %d times", restarts), func(p *v1.Pod) bool {
					return ready(p) && p.Status.ContainerStatuses[0].RestartCount == restarts
				})
				if restarts < 4 {
					b.runtime.Exit("main", 1)
				}
			}
			// One that is at work is left alone.
			testwait.Succeed(t, "the dead containers' removal", func() error {
				if _, err := b.manager.Tidy(b.ctx, podlogs.Rotation{}); err != nil {
					return err
				}
				if _, have := b.runtime.Count(); have != c.want {
					return fmt.Errorf("%d containers are left, want %d", have, c.want)
				}
				return nil
			})
			b.await("a", "as it was", func(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 4 })
		})
	}
}
