package podutil

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTerminal(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		"": false, corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false,
		corev1.PodSucceeded: true, corev1.PodFailed: true,
	} {
		if got := Terminal(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}); got != want {
			t.Errorf("phase %q: terminal is %v, want %v", phase, got, want)
		}
	}
}

func TestReady(t *testing.T) {
	for name, tc := range map[string]struct {
		conditions []corev1.PodCondition
		want       bool
	}{
		"no conditions":             {nil, false},
		"other condition is true":   {[]corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}, false},
		"condition is false":        {[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}, false},
		"condition is true":         {[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, true},
		"one of several conditions": {[]corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Ready(&corev1.Pod{Status: corev1.PodStatus{Conditions: tc.conditions}}); got != tc.want {
				t.Errorf("ready is %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPriority(t *testing.T) {
	if got := Priority(&corev1.Pod{}); got != 0 {
		t.Errorf("without priority: %d, want 0", got)
	}
	if got := Priority(&corev1.Pod{Spec: corev1.PodSpec{Priority: new(int32(-7))}}); got != -7 {
		t.Errorf("with priority: %d, want -7", got)
	}
}

func TestSidecar(t *testing.T) {
	for policy, want := range map[corev1.ContainerRestartPolicy]bool{
		corev1.ContainerRestartPolicyAlways: true, corev1.ContainerRestartPolicyNever: false, corev1.ContainerRestartPolicyOnFailure: false,
	} {
		if got := Sidecar(&corev1.Container{RestartPolicy: &policy}); got != want {
			t.Errorf("policy %s: sidecar is %v, want %v", policy, got, want)
		}
	}
	if Sidecar(&corev1.Container{}) {
		t.Error("a container without restart policy is reported as a sidecar")
	}
}
