package pods

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podstate"
)

// gone waits until a channel is closed.
func gone(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(2 * time.Minute):
		t.Fatal("never: " + what)
	}
}

// log writes a log file of a pod's container and returns its path.
func (b *bench) log(p *v1.Pod) string {
	b.t.Helper()
	path := filepath.Join(b.host.Logs.Dir(p), "main", "0.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("much"), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// TestDiscard checks that an evicted pod leaves nothing on the node while its object reports how it
// terminated, and that the containers of a completed pod are removed when disk space is reclaimed.
func TestDiscard(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	evicted := newPod("evicted", nil)
	finished := newPod("finished", func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever })
	for _, p := range []*v1.Pod{evicted, finished} {
		b.add(p)
		b.await(p.Name, "running", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning })
	}
	log := b.log(evicted)
	b.registry.Terminate(evicted.UID, &Verdict{Reason: "Evicted", Message: "The node was low on resource: memory. ", Discard: true})
	gone(t, "nothing is left of the evicted pod", b.registry.Emptied(evicted.UID))
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the evicted pod's log: %v", err)
	}
	if s, c := b.runtime.Count(); s != 1 || c != 1 {
		t.Errorf("%d sandboxes and %d containers remain", s, c)
	}
	check := func(name string, phase v1.PodPhase, code int32) {
		t.Helper()
		w := b.registry.worker(types.UID("uid-" + name))
		w.mu.Lock()
		w.fresh.all = true
		w.mu.Unlock()
		w.step(b.ctx)
		p := b.await(name, string(phase), func(p *v1.Pod) bool { return p.Status.Phase == phase })
		w.mu.Lock()
		next := podstate.Status(w.report.statusInput(time.Now()))
		w.mu.Unlock()
		if !apiequality.Semantic.DeepEqual(next.ContainerStatuses, p.Status.ContainerStatuses) {
			t.Errorf("%s: first %+v, then %+v", name, p.Status.ContainerStatuses, next.ContainerStatuses)
		}
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != code || end.ContainerID == "" {
			t.Errorf("%s: %+v", name, p.Status.ContainerStatuses)
		}
	}
	check("evicted", v1.PodFailed, 137)

	log = b.log(finished)
	b.runtime.Exit("main", 3)
	b.await("finished", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	gone(t, "the finished pod's volumes are gone", b.registry.Cleaned(finished.UID))
	if s, c := b.runtime.Count(); s != 1 || c != 1 {
		t.Errorf("%d sandboxes and %d containers retained for logs", s, c)
	}
	if err := b.registry.Discard(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, c := b.runtime.Count(); s != 0 || c != 0 {
		t.Errorf("%d sandboxes and %d containers of the finished pod remain", s, c)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the finished pod's log: %v", err)
	}
	check("finished", v1.PodFailed, 3)

	// The pod is deleted like any other.
	p, err := b.kube.CoreV1().Pods("default").Get(b.ctx, "finished", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p = p.DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp = &now
	done := b.registry.Done(p.UID)
	b.manager.Set(b.ctx, p)
	b.registry.Remove(p.UID)
	gone(t, "the finished pod is forgotten", done)
}
