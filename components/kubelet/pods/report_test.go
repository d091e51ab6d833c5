package pods

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/podstate"
)

// TestReplacing: that a container has ended is not told while another is about to
// take its place, but for a moment only.
func TestReplacing(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name  string
		state podstate.State
		ended time.Duration // ago
		slot  podstate.Slot
		stage stage
		waits bool
	}{
		{"just stopped", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, syncing, true},
		{"stopped a while ago", podstate.Exited, replacePause, podstate.Slot{ForceRestart: "old"}, syncing, false},
		{"cannot be started", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old", Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}, syncing, false},
		{"still running", podstate.Running, 0, podstate.Slot{ForceRestart: "old"}, syncing, false},
		{"ended by itself", podstate.Exited, 100 * time.Millisecond, podstate.Slot{}, syncing, false},
		{"of a pod that ends", podstate.Exited, 100 * time.Millisecond, podstate.Slot{ForceRestart: "old"}, terminating, false},
	} {
		w := &worker{stage: c.stage, slots: map[string]podstate.Slot{"main": c.slot}}
		w.obs.Containers = []podstate.Container{{ID: "old", Name: "main", State: c.state, FinishedAt: now.Add(-c.ended)}}
		if got := !w.replacing(now).IsZero(); got != c.waits {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.waits)
		}
	}
}
