package pods

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podstate"
)

// TestStartUnderWay checks that a container that is being started by the call of a killed kubelet
// is kept, because recreating it would kill it. Its postStart hook runs, because the killed kubelet
// did not get the response and has not run it.
func TestStartUnderWay(t *testing.T) {
	runtime := crifake.New("busybox:1")
	var hooks atomic.Int32
	runtime.OnExec = func(string, []string) (int32, string) {
		hooks.Add(1)
		return 0, ""
	}
	first := newBench(t, runtime)
	first.add(newPod("a", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
	}))
	before := first.await("a", "ready", ready)
	first.stop()

	runtime.SetStarting("main")
	p := newPod("a", nil)
	p.Spec = before.Spec
	next := newBench(t, runtime, p)
	next.manager.Set(next.ctx, p)
	after := next.await("a", "ready", ready)
	if got, want := after.Status.ContainerStatuses[0].ContainerID, before.Status.ContainerStatuses[0].ContainerID; got != want {
		t.Errorf("container %s replaced %s", got, want)
	}
	for hooks.Load() != 2 && next.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if calls := runtime.Calls(); !slices.Equal(calls, []string{"RunPodSandbox a", "CreateContainer main", "StartContainer main"}) {
		t.Errorf("calls %v", calls)
	}
}

// TestCreatedByOther checks that a container that is being created by the call of a killed kubelet,
// so that its name is in use, is started when it exists, after an attempt to create it has failed.
func TestCreatedByOther(t *testing.T) {
	runtime := crifake.New("busybox:1")
	var asked *runtimeapi.CreateContainerRequest
	runtime.OnCreate = func(req *runtimeapi.CreateContainerRequest) error {
		if asked == nil {
			asked = req
			return errors.New("the name is reserved")
		}
		return nil
	}
	b := newBench(t, runtime)
	p := newPod("a", nil)
	b.add(p)
	b.await("a", "refused", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == createContainerError
	})
	w := b.registry.worker(p.UID)
	w.mu.Lock()
	slot := w.machine.Containers.Slots["main"]
	slot.RetryAt = time.Now().Add(time.Hour)
	w.machine.Containers.Slots["main"] = slot
	w.mu.Unlock()
	if _, err := runtime.CreateContainer(b.ctx, asked); err != nil {
		t.Fatal(err)
	}
	b.await("a", "ready", ready)
	if calls := runtime.Calls(); !slices.Equal(calls, []string{"RunPodSandbox a", "CreateContainer main", "CreateContainer main", "StartContainer main"}) {
		t.Errorf("calls %v", calls)
	}
}

// TestForeignMirrorPod checks that a created container whose spec has changed since is not started.
func TestForeignMirrorPod(t *testing.T) {
	runtime := crifake.New("busybox:1", "busybox:2")
	first := newBench(t, runtime)
	first.add(newPod("a", nil))
	before := first.await("a", "ready", ready)
	first.stop()

	runtime.SetStarting("main")
	p := newPod("a", func(p *v1.Pod) { p.Spec.Containers[0].Image = "busybox:2" })
	next := newBench(t, runtime, p)
	next.manager.Set(next.ctx, p)
	after := next.await("a", "ready", ready)
	if after.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID {
		t.Error("the container with the old definition runs")
	}
}

// TestForeignMirrorPodRemains checks that the removal of such a container is retried with a delay if it
// fails, and that the status reports why the container does not start.
func TestForeignMirrorPodRemains(t *testing.T) {
	runtime := crifake.New("busybox:1", "busybox:2")
	first := newBench(t, runtime)
	first.add(newPod("a", nil))
	first.await("a", "ready", ready)
	first.stop()

	runtime.SetStarting("main")
	runtime.Fail("RemoveContainer", errors.New("device or resource busy"))
	p := newPod("a", func(p *v1.Pod) { p.Spec.Containers[0].Image = "busybox:2" })
	next := newBench(t, runtime, p)
	next.manager.Set(next.ctx, p)
	next.waitForEvent("Failed Error: removing a container that was never started: device or resource busy")
	w := next.registry.worker(p.UID)
	var slot podstate.Slot
	for slot.RetryAt.IsZero() && next.ctx.Err() == nil { // the status is updated before
		time.Sleep(time.Millisecond)
		w.mu.Lock()
		slot = w.machine.Containers.Slots["main"]
		w.mu.Unlock()
	}
	runtime.Fail("RemoveContainer", nil)
	w.update(func() {
		slot.RetryAt = time.Time{}
		w.machine.Containers.Slots["main"] = slot
	})
	next.await("a", "ready", ready)
}
