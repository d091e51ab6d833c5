package pods

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestHooksOfSidecars checks that the preStop hooks of all containers run concurrently, and that
// the containers are then stopped in order.
func TestHooksOfSidecars(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	runtime := crifake.New("busybox:1")
	hook := func(name string) *v1.Lifecycle {
		return &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{name}}}}
	}
	var mu sync.Mutex
	var begun []string // guarded by mu
	all := make(chan struct{})
	runtime.OnExec = func(_ string, cmd []string) (int32, string) {
		mu.Lock()
		begun = append(begun, cmd[0])
		if len(begun) == 3 {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
			return 0, ""
		case <-time.After(time.Minute):
			return 1, "the others' hooks do not run"
		}
	}
	b := newBench(t, runtime)
	grace := int64(600)
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.InitContainers = []v1.Container{
			{Name: "one", Image: "busybox:1", RestartPolicy: &always, Lifecycle: hook("one")},
			{Name: "two", Image: "busybox:1", RestartPolicy: &always, Lifecycle: hook("two")},
		}
		p.Spec.Containers[0].Lifecycle = hook("main")
	}))
	b.end(grace)
	mu.Lock()
	defer mu.Unlock()
	if slices.Sort(begun); !slices.Equal(begun, []string{"main", "one", "two"}) {
		t.Errorf("the hooks that ran: %v", begun)
	}
	select {
	case <-all:
	default:
		t.Error("the hooks did not run concurrently")
	}
	var stopped []string
	for _, c := range runtime.Calls() {
		if name, ok := strings.CutPrefix(c, "StopContainer "); ok && !slices.Contains(stopped, name) {
			stopped = append(stopped, name)
		}
	}
	if want := []string{"main", "two", "one"}; !slices.Equal(stopped, want) {
		t.Errorf("stopped %v, want %v", stopped, want)
	}
}

// end deletes pod a when it is ready, with a grace period in seconds, and waits until nothing is
// left of it.
func (b *bench) end(grace int64) {
	b.t.Helper()
	p := b.await("a", "ready", ready).DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.ResourceVersion = &now, &grace, "100"
	b.manager.Set(b.ctx, p)
	select {
	case <-b.registry.Cleaned("uid-a"):
	case <-time.After(2 * time.Minute):
		b.t.Fatalf("the pod never terminated; calls %v", b.runtime.Calls())
	}
}

// TestGraceOfProbes checks the grace period of a container that fails a probe: that of the probe,
// otherwise that of the pod, and that of the deletion if the pod is being deleted.
func TestGraceOfProbes(t *testing.T) {
	failing := func(grace *int64) *v1.Probe {
		return &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}},
			PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1, TerminationGracePeriodSeconds: grace,
		}
	}
	seven, nine := int64(7), int64(9)
	for name, c := range map[string]struct {
		change  func(*v1.Container)
		deleted bool
		want    int64
	}{
		"liveness":                           {func(c *v1.Container) { c.LivenessProbe = failing(&seven) }, false, 7},
		"startup":                            {func(c *v1.Container) { c.StartupProbe, c.LivenessProbe = failing(&nine), failing(&seven) }, false, 9},
		"no probe grace period":              {func(c *v1.Container) { c.LivenessProbe = failing(nil) }, false, 600},
		"startup probe without grace period": {func(c *v1.Container) { c.StartupProbe, c.LivenessProbe = failing(nil), failing(&seven) }, false, 600},
		"readiness probe fails":              {func(c *v1.Container) { c.LivenessProbe = failing(&seven); c.ReadinessProbe = failing(nil) }, false, 7},
		"a pod that is deleted":              {func(c *v1.Container) { c.LivenessProbe = failing(&seven); c.LivenessProbe.InitialDelaySeconds = 3600 }, true, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime := crifake.New("busybox:1")
			runtime.OnExec = func(string, []string) (int32, string) { return 1, "sick" }
			stopped := make(chan int64, 100)
			runtime.OnStop = func(_ string, seconds int64) { stopped <- seconds }
			b := newBench(t, runtime)
			grace := int64(600)
			b.add(newPod("a", func(p *v1.Pod) {
				p.Spec.TerminationGracePeriodSeconds = &grace
				c.change(&p.Spec.Containers[0])
			}))
			if c.deleted {
				b.end(5)
			}
			select {
			case got := <-stopped:
				if got != c.want {
					t.Errorf("%d seconds, want %d", got, c.want)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("the container is not stopped; calls %v", runtime.Calls())
			}
		})
	}
}

// TestLeastGrace checks that a pod without a grace period has enough time for its preStop hooks to
// start and for a signal, and that a pod removed from its source has its own grace period.
func TestLeastGrace(t *testing.T) {
	for name, c := range map[string]struct {
		grace int64 // grace period of the pod
		end   func(*bench, *v1.Pod)
		hook  bool
		want  int64
	}{
		"deleted":                   {0, func(b *bench, _ *v1.Pod) { b.end(0) }, true, 2},
		"removed":                   {0, func(b *bench, p *v1.Pod) { b.registry.Remove(p.UID) }, true, 2},
		"deleted with grace period": {600, func(b *bench, p *v1.Pod) { b.registry.Remove(p.UID) }, false, 600},
		"force deleted":             {600, func(b *bench, _ *v1.Pod) { b.end(0) }, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime := crifake.New("busybox:1")
			hooked, stopped := make(chan bool, 1), make(chan int64, 100)
			runtime.OnExec = func(string, []string) (int32, string) {
				hooked <- true
				return 0, ""
			}
			runtime.OnStop = func(_ string, seconds int64) { stopped <- seconds }
			b := newBench(t, runtime)
			p := newPod("a", func(p *v1.Pod) {
				p.Spec.TerminationGracePeriodSeconds = &c.grace
				if c.hook {
					p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
				}
			})
			b.add(p)
			b.await("a", "ready", ready)
			c.end(b, p)
			if got := <-stopped; got != c.want {
				t.Errorf("%d seconds, want %d", got, c.want)
			}
			if (len(hooked) > 0) != c.hook {
				t.Errorf("hook ran: %t", len(hooked) > 0)
			}
		})
	}
}

// TestSidecarsWithoutTime checks that sidecars are stopped at the end of the grace period even if
// containers before them have not exited.
func TestSidecarsWithoutTime(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	runtime := crifake.New("busybox:1")
	runtime.Stubborn = true
	b := newBench(t, runtime)
	one := int64(1)
	b.add(newPod("a", func(p *v1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &one
		p.Spec.InitContainers = []v1.Container{{Name: "one", Image: "busybox:1", RestartPolicy: &always}}
	}))
	b.end(one)
}

// TestRenew checks that a pod that is added again while it is being removed is started again after
// its termination, and that it is not treated as new.
func TestRenew(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", nil))
	pod := b.await("a", "ready", ready)
	if b.registry.RestartRemoved("uid-a") != nil {
		t.Error("a pod that is not deleted is to be recreated")
	}
	// Set both before the worker checks them.
	w := b.registry.all()[0]
	w.mu.Lock()
	w.machine.Removed, w.machine.RunAgain = true, true
	w.mu.Unlock()
	done := b.registry.RestartRemoved("uid-a")
	if done == nil {
		t.Fatal("a deleted pod is not to be recreated")
	}
	w.kick()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the pod never terminated; calls %v", b.runtime.Calls())
	}
	b.manager.Set(b.ctx, pod)
	b.await("a", "back", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
}
