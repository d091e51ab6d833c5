package horizontalpodautoscaling

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStarting: the usage of starting pods is ignored.
//
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#pod-readiness-and-autoscaling-metrics
func TestStarting(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	c := &Controller{cfg: Config{CPUInitialization: 5 * time.Minute, ReadinessDelay: 30 * time.Second}}
	for _, tc := range []struct {
		name    string
		started time.Duration // duration before now; negative: not started
		ready   corev1.ConditionStatus
		since   time.Duration // duration before now
		measure time.Duration // duration before now; the window is a minute
		want    bool
	}{
		{"not started", -1, corev1.ConditionTrue, time.Minute, 0, true},
		{"no Ready condition", 10 * time.Minute, "", 0, 0, true},
		{"recently started, not ready", time.Minute, corev1.ConditionFalse, time.Minute, 0, true},
		{"recently started, sample before ready", 2 * time.Minute, corev1.ConditionTrue, 30 * time.Second, 0, true},
		{"recently started, sample since ready", 3 * time.Minute, corev1.ConditionTrue, 90 * time.Second, 0, false},
		{"recently started, sample started before ready", 3 * time.Minute, corev1.ConditionTrue, 90 * time.Second, time.Minute, true},
		{"started long ago, ready", time.Hour, corev1.ConditionTrue, time.Second, 0, false},
		{"started long ago, no longer ready", time.Hour, corev1.ConditionFalse, time.Minute, 0, false},
		{"started long ago, never ready", time.Hour, corev1.ConditionFalse, time.Hour - 10*time.Second, 0, true},
	} {
		p := &corev1.Pod{}
		if tc.started >= 0 {
			p.Status.StartTime = &metav1.Time{Time: now.Add(-tc.started)}
		}
		if tc.ready != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: tc.ready, LastTransitionTime: metav1.NewTime(now.Add(-tc.since))}}
		}
		if got := c.starting(p, sample{at: now.Add(-tc.measure), window: time.Minute}, now); got != tc.want {
			t.Errorf("%s: unready is %v", tc.name, got)
		}
	}
}
