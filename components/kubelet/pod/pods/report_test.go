package pods

import (
	"bytes"
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/internal/testing/testwait"
)

// fakeMirror returns the same mirror pod for all static pods.
type fakeMirror struct{ pod *v1.Pod }

func (m *fakeMirror) Of(*v1.Pod) *v1.Pod { return m.pod }

// TestMirrorPodRecreated checks that the status is written to a mirror pod that was deleted and
// recreated.
func TestMirrorPodRecreated(t *testing.T) {
	mirror := &fakeMirror{}
	w := newWorker(newHost(Config{Log: slog.New(slog.DiscardHandler), Collaborators: Collaborators{Mirror: mirror}}), &v1.Pod{})
	if w.report.mirrorPod() != nil {
		t.Error("unexpected mirror pod")
	}
	w.report.last, w.report.version = &v1.PodStatus{Phase: v1.PodRunning}, "9"
	mirror.pod = &v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}
	for version, want := range map[string]v1.PodPhase{"8": v1.PodRunning, "10": v1.PodPending} {
		w.report.last, w.report.version = &v1.PodStatus{Phase: v1.PodRunning}, "9"
		mirror.pod.ResourceVersion = version
		if w.report.mirrorPod() != mirror.pod || w.report.last.Phase != want {
			t.Errorf("%s: recorded API status %s", version, w.report.last.Phase)
		}
	}
}

// TestRefusedStatus checks that the next status is sent after the API server has rejected one.
func TestRefusedStatus(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.kube.PrependReactor("patch", "pods", func(action kubetesting.Action) (bool, runtime.Object, error) {
		if patch := action.(kubetesting.PatchAction).GetPatch(); bytes.Contains(patch, []byte(`"running":{`)) {
			return true, nil, apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", nil)
		}
		return false, nil, nil
	})
	b.add(newPod("a", func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	worker := b.registry.worker("uid-a")
	testwait.Until(t, "the rejection of the status", func() bool {
		worker.mu.Lock()
		defer worker.mu.Unlock()
		return worker.report.halted
	})
	b.runtime.Exit("main", 3)
	b.await("a", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
}
