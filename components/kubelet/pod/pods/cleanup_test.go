package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/internal/testing/testwait"
)

// TestDeadContainers checks that the configured number of exited containers is retained, and always
// the newest one.
func TestDeadContainers(t *testing.T) {
	none, two, all := 0, 2, -1
	for name, c := range map[string]struct {
		dead DeadContainers
		want int
	}{
		"default":                    {DeadContainers{}, 2},
		"none":                       {DeadContainers{PerContainer: &none}, 1},
		"two":                        {DeadContainers{PerContainer: &two}, 3},
		"all":                        {DeadContainers{PerContainer: &all}, 5},
		"two per pod, none in total": {DeadContainers{PerContainer: &two, Total: &none}, 1},
		"minimum age":                {DeadContainers{PerContainer: &none, MinAge: time.Hour}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBenchWith(t, crifake.New("busybox:1"), func(cfg *Config) { cfg.CrashMax = time.Millisecond })
			garbage := NewGarbageCollector(b.registry, b.host.Logs, c.dead)
			b.add(newPod("a", nil))
			for restarts := range int32(5) {
				b.await("a", fmt.Sprintf("restarted %d times", restarts), func(p *v1.Pod) bool {
					return ready(p) && p.Status.ContainerStatuses[0].RestartCount == restarts
				})
				if restarts < 4 {
					b.runtime.Exit("main", 1)
				}
			}
			// A pod with an operation in progress is skipped.
			testwait.Succeed(t, "the removal of exited containers", func() error {
				if _, err := garbage.Collect(b.ctx, podlogs.Rotation{}); err != nil {
					return err
				}
				if _, have := b.runtime.Count(); have != c.want {
					return fmt.Errorf("%d containers remain, want %d", have, c.want)
				}
				return nil
			})
			b.await("a", "as it was", func(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 4 })
		})
	}
}

// TestLogsOfEndingPod checks that the log of a container that is slow to stop is also rotated.
func TestLogsOfEndingPod(t *testing.T) {
	runtime := crifake.New("busybox:1")
	ending, release := make(chan bool, 1), make(chan bool)
	defer close(release)
	runtime.OnExec = func(string, []string) (int32, string) {
		ending <- true
		<-release
		return 0, ""
	}
	b := newBench(t, runtime)
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
	}))
	p := b.await("a", "ready", ready).DeepCopy()
	log := filepath.Join(b.host.Logs.Dir(p), "main", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	now, grace := metav1.Now(), int64(600)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.ResourceVersion = &now, &grace, "100"
	b.manager.Set(b.ctx, p)
	<-ending
	if _, err := NewGarbageCollector(b.registry, b.host.Logs, DeadContainers{}).Collect(b.ctx, podlogs.Rotation{MaxSize: 10, MaxFiles: 5}); err != nil {
		t.Fatal(err)
	}
	if old, err := filepath.Glob(log + ".*"); err != nil || len(old) != 1 {
		t.Errorf("rotated to %v, %v", old, err)
	}
}
