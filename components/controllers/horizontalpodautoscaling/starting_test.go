package horizontalpodautoscaling

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStarting: what a pod uses while it starts says nothing of what it will use.
//
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#pod-readiness-and-autoscaling-metrics
func TestStarting(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	c := &Controller{cfg: Config{CPUInitialization: 5 * time.Minute, ReadinessDelay: 30 * time.Second}}
	for _, tc := range []struct {
		name    string
		started time.Duration // ago; negative: not at all
		ready   corev1.ConditionStatus
		since   time.Duration // ago
		measure time.Duration // ago, over a minute
		want    bool
	}{
		{"not started", -1, corev1.ConditionTrue, time.Minute, 0, true},
		{"nobody says whether it is ready", 10 * time.Minute, "", 0, 0, true},
		{"young, not ready", time.Minute, corev1.ConditionFalse, time.Minute, 0, true},
		{"young, measured before it was ready", 2 * time.Minute, corev1.ConditionTrue, 30 * time.Second, 0, true},
		{"young, measured since it is ready", 3 * time.Minute, corev1.ConditionTrue, 90 * time.Second, 0, false},
		{"young, measured for the last time before", 3 * time.Minute, corev1.ConditionTrue, 90 * time.Second, time.Minute, true},
		{"old, ready", time.Hour, corev1.ConditionTrue, time.Second, 0, false},
		{"old, not ready any more", time.Hour, corev1.ConditionFalse, time.Minute, 0, false},
		{"old, never ready", time.Hour, corev1.ConditionFalse, time.Hour - 10*time.Second, 0, true},
	} {
		p := &corev1.Pod{}
		if tc.started >= 0 {
			p.Status.StartTime = &metav1.Time{Time: now.Add(-tc.started)}
		}
		if tc.ready != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: tc.ready, LastTransitionTime: metav1.NewTime(now.Add(-tc.since))}}
		}
		if got := c.starting(p, sample{at: now.Add(-tc.measure), window: time.Minute}, now); got != tc.want {
			t.Errorf("%s: starting is %v", tc.name, got)
		}
	}
}
