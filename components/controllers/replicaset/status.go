package replicaset

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// statusOf computes the status of rs from its active pods and the number of terminating ones. manageErr is the error of
// the creation or deletion of pods in this sync, or nil; it determines the condition ReplicaFailure.
func statusOf(rs *appsv1.ReplicaSet, active []*corev1.Pod, terminating int32, manageErr error, now time.Time) appsv1.ReplicaSetStatus {
	s := *rs.Status.DeepCopy()
	s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = int32(len(active)), 0, 0, 0
	s.TerminatingReplicas = &terminating
	template := labels.Set(rs.Spec.Template.Labels).AsSelectorPreValidated()
	for _, p := range active {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		if podutil.Ready(p) {
			s.ReadyReplicas++
			if control.IsAvailable(p, rs.Spec.MinReadySeconds, now) {
				s.AvailableReplicas++
			}
		}
	}
	failure := Condition(s, appsv1.ReplicaSetReplicaFailure)
	switch {
	case manageErr != nil && failure == nil:
		reason := control.FailedCreate
		if rs.Spec.Replicas != nil && len(active) > int(*rs.Spec.Replicas) {
			reason = control.FailedDelete
		}
		s.Conditions = append(s.Conditions, appsv1.ReplicaSetCondition{
			Type:               appsv1.ReplicaSetReplicaFailure,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now),
			Reason:             reason,
			Message:            manageErr.Error(),
		})
	case manageErr == nil && failure != nil:
		kept := s.Conditions[:0]
		for _, c := range s.Conditions {
			if c.Type != appsv1.ReplicaSetReplicaFailure {
				kept = append(kept, c)
			}
		}
		s.Conditions = kept
	}
	return s
}

// Condition returns the condition of s of the type kind, or nil if s has none. The result points into s.Conditions.
func Condition(s appsv1.ReplicaSetStatus, kind appsv1.ReplicaSetConditionType) *appsv1.ReplicaSetCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// sameStatus reports whether a and b are equal, apart from the observed generation. If knowsTerminating is false, it
// also ignores the number of terminating pods in b if a contains none, because ReplicationControllers have no such
// field.
func sameStatus(a, b appsv1.ReplicaSetStatus, knowsTerminating bool) bool {
	a.ObservedGeneration, b.ObservedGeneration = 0, 0
	if a.TerminatingReplicas == nil && !knowsTerminating {
		b.TerminatingReplicas = nil
	}
	return equality.Semantic.DeepEqual(a, b)
}
