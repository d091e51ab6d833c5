package podmachine

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/components/kubelet/pod/podstate"
)

// TestSidecarToStop checks that sidecars are stopped one by one after the app containers.
func TestSidecarToStop(t *testing.T) {
	pod := &v1.Pod{}
	for _, name := range []string{"first", "second", "third"} {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{Name: name})
	}
	for name, tc := range map[string]struct {
		running string
		apps    bool
		want    string
	}{
		"app containers first": {running: "first third second", apps: true},
		"last sidecar":         {running: "first third second", want: "third"},
		"previous sidecar":     {running: "first second", want: "second"},
		"none":                 {},
	} {
		ids := map[string]string{}
		for n := range strings.FieldsSeq(tc.running) {
			ids[n] = "id-" + n
		}
		if got := sidecarToStop(pod, ids, tc.apps); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestLate checks that an event is emitted, once, when the termination of a pod by the kubelet is
// overdue.
func TestLate(t *testing.T) {
	grace := int64(60)
	for name, tc := range map[string]struct {
		verdict Verdict
		want    time.Duration
	}{
		"termination grace period": {Verdict{Grace: new(int64(20))}, 30 * time.Second},
		"pod grace period":         {Verdict{}, 90 * time.Second},
		"minimal grace period":     {Verdict{Grace: new(int64(1))}, 10 * time.Second},
	} {
		m := New(&v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}}, Options{})
		began := time.Now()
		m.Terminate(&tc.verdict, began)
		if after := m.overdueAt.Sub(began); after != tc.want {
			t.Errorf("%s: overdue after %v, want %v", name, after, tc.want)
		}
		var early, once, again Decision
		at := m.overdueAt
		m.reportOverdue(false, at.Add(-time.Second), &early)
		if !m.overdueAt.Equal(at) || len(early.Events) > 0 {
			t.Errorf("%s: event too early", name)
		}
		m.reportOverdue(false, at, &once)
		m.reportOverdue(false, at, &again)
		want := []Event{{"", true, "ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period."}}
		if !m.overdueAt.IsZero() || !slices.Equal(once.Events, want) || len(again.Events) > 0 {
			t.Errorf("%s: events %v and %v", name, once.Events, again.Events)
		}
	}
	m := New(&v1.Pod{}, Options{})
	m.Terminate(&Verdict{Rejected: true}, time.Now())
	if !m.overdueAt.IsZero() {
		t.Error("a pod that never ran is overdue")
	}
}

// TestReplacing checks that the exit of a container is not reported while it is about to be
// replaced, but only for a short time.
func TestReplacing(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name  string
		state podstate.State
		ended time.Duration // time since the exit
		slot  podstate.Slot
		stage Stage
		waits bool
	}{
		{"just stopped", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, Syncing, true},
		{"stopped a while ago", podstate.Exited, replaceDelay, podstate.Slot{ForceRestart: "old"}, Syncing, false},
		{"start failed", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old", Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}, Syncing, false},
		{"still running", podstate.Running, 0, podstate.Slot{ForceRestart: "old"}, Syncing, false},
		{"exited", podstate.Exited, 100 * time.Millisecond, podstate.Slot{}, Syncing, false},
		{"terminating pod", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, Terminating, false},
	} {
		m := New(&v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "main"}}}}, Options{})
		m.Stage, m.Adopted, m.Containers.Slots["main"] = c.stage, true, c.slot
		m.Containers.Observed.Containers = []podstate.Container{{ID: "old", Name: "main", State: c.state, FinishedAt: now.Add(-c.ended)}}
		if d := m.Step(Input{Now: now, Last: &v1.PodStatus{}}); d.Report == c.waits {
			t.Errorf("%s: waits %v, want %v", c.name, !d.Report, c.waits)
		}
	}
}

// TestMemoryRequested checks that the applied memory request of a container is known from its first
// observation and from the status after a restart, and that the status of a later container is not
// used.
func TestMemoryRequested(t *testing.T) {
	memory := func(n string) v1.ResourceList { return v1.ResourceList{v1.ResourceMemory: resource.MustParse(n)} }
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: v1.ResourceRequirements{Requests: memory("20")}}}}}
	status := func(id string) []v1.ContainerStatus {
		return []v1.ContainerStatus{{Name: "a", ContainerID: "rt://" + id, Resources: &v1.ResourceRequirements{Requests: memory("10")}}}
	}
	pod.Status.ContainerStatuses = status("before")
	m := New(pod, Options{})
	pod.Status.ContainerStatuses = status("later")
	for id, want := range map[string]int64{"before": 10, "later": 20} {
		for range 2 {
			if got := m.Resize.appliedMemory(id, &pod.Spec.Containers[0]); got != want {
				t.Errorf("%s: %d", id, got)
			}
		}
	}
}
