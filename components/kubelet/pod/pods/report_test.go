package pods

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podstate"
)

// TestReplacing checks that the exit of a container is not reported while it is about to be
// replaced, but only for a short time.
func TestReplacing(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name  string
		state podstate.State
		ended time.Duration // time since the exit
		slot  podstate.Slot
		stage stage
		waits bool
	}{
		{"just stopped", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, syncing, true},
		{"stopped a while ago", podstate.Exited, replaceDelay, podstate.Slot{ForceRestart: "old"}, syncing, false},
		{"start failed", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old", Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}, syncing, false},
		{"still running", podstate.Running, 0, podstate.Slot{ForceRestart: "old"}, syncing, false},
		{"exited", podstate.Exited, 100 * time.Millisecond, podstate.Slot{}, syncing, false},
		{"terminating pod", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, terminating, false},
	} {
		w := &worker{stage: c.stage, slots: map[string]podstate.Slot{"main": c.slot}}
		w.obs.Containers = []podstate.Container{{ID: "old", Name: "main", State: c.state, FinishedAt: now.Add(-c.ended)}}
		if got := !w.replacementDeadline(now).IsZero(); got != c.waits {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.waits)
		}
	}
}

// fakeMirror returns the same mirror pod for all static pods.
type fakeMirror struct{ pod *v1.Pod }

func (m *fakeMirror) Of(*v1.Pod) *v1.Pod { return m.pod }

// TestMirrorPodRecreated checks that the status is written to a mirror pod that was deleted and
// recreated.
func TestMirrorPodRecreated(t *testing.T) {
	mirror := &fakeMirror{}
	w := newWorker(newHost(Config{Log: slog.New(slog.DiscardHandler), Collaborators: Collaborators{Mirror: mirror}}), &v1.Pod{})
	if w.mirrorPod() != nil {
		t.Error("unexpected mirror pod")
	}
	w.report.last, w.report.version = &v1.PodStatus{Phase: v1.PodRunning}, "9"
	mirror.pod = &v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}
	for version, want := range map[string]v1.PodPhase{"8": v1.PodRunning, "10": v1.PodPending} {
		w.report.last, w.report.version = &v1.PodStatus{Phase: v1.PodRunning}, "9"
		mirror.pod.ResourceVersion = version
		if w.mirrorPod() != mirror.pod || w.report.last.Phase != want {
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
	for !worker.halted() {
		time.Sleep(time.Millisecond)
	}
	b.runtime.Exit("main", 3)
	b.await("a", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
}
