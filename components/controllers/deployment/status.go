package deployment

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/replicaset"
)

// Reasons of the Progressing and Available conditions.
const (
	foundNewRS          = "FoundNewReplicaSet"
	newRSCreated        = "NewReplicaSetCreated"
	newRSAvailable      = "NewReplicaSetAvailable"
	rsUpdated           = "ReplicaSetUpdated"
	failedCreateRS      = "ReplicaSetCreateError"
	timedOut            = "ProgressDeadlineExceeded"
	pausedReason        = "DeploymentPaused"
	resumedReason       = "DeploymentResumed"
	minimumAvailable    = "MinimumReplicasAvailable"
	minimumNotAvailable = "MinimumReplicasUnavailable"
)

// condition returns the condition of s of the type kind, or nil if s has none. The result points into s.Conditions.
func condition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// removeCondition removes the condition of the type kind from s.
func removeCondition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	var kept []appsv1.DeploymentCondition
	for _, c := range s.Conditions {
		if c.Type != kind {
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
}

// setCondition adds cond to the status s, or replaces the condition of the same type. It does nothing if that
// condition has the same status and reason. It keeps the transition time if only the reason changes.
func setCondition(s *appsv1.DeploymentStatus, cond appsv1.DeploymentCondition) {
	if old := condition(s, cond.Type); old != nil {
		if old.Status == cond.Status && old.Reason == cond.Reason {
			return
		}
		if old.Status == cond.Status {
			cond.LastTransitionTime = old.LastTransitionTime
		}
	}
	removeCondition(s, cond.Type)
	s.Conditions = append(s.Conditions, cond)
}

// condition returns a new condition with the current time.
func (r *rollout) condition(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) appsv1.DeploymentCondition {
	now := metav1.NewTime(r.env.Clock.Now())
	return appsv1.DeploymentCondition{Type: kind, Status: status, LastUpdateTime: now, LastTransitionTime: now, Reason: reason, Message: message}
}

// set sets a condition in the status s with the current time. It keeps an equivalent existing condition, see
// setCondition.
func (r *rollout) set(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	setCondition(s, r.condition(kind, status, reason, message))
}

// complete reports whether the rollout of a Deployment with the status s is complete: all desired pods are updated and
// available, and there are no old ones.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := replicas(d.Spec.Replicas)
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

// progressing reports whether the new status s shows progress of the rollout compared to the current status of d.
func progressing(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	was := &d.Status
	return s.UpdatedReplicas > was.UpdatedReplicas ||
		s.Replicas-s.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		s.ReadyReplicas > was.ReadyReplicas ||
		s.AvailableReplicas > was.AvailableReplicas
}

// isTimedOut reports whether the rollout of a Deployment with the status s has exceeded its progress deadline.
func isTimedOut(d *appsv1.Deployment, s *appsv1.DeploymentStatus, now time.Time) bool {
	c := condition(s, appsv1.DeploymentProgressing)
	if !hasDeadline(d) || c == nil {
		return false
	}
	switch c.Reason {
	case newRSAvailable:
		// The rollout was complete; a later loss of pods is not a rollout.
		return false
	case timedOut:
		return true
	}
	return deadline(d, c).Before(now)
}

// deadline returns the time at which a rollout exceeds its progress deadline. c is its Progressing condition, whose
// last update is the last progress. The Deployment must have a deadline.
func deadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// compute returns the status of the Deployment, computed from the status of its ReplicaSets. It sets the Available
// condition and keeps the others.
func (r *rollout) compute() appsv1.DeploymentStatus {
	all := r.all()
	s := appsv1.DeploymentStatus{
		ObservedGeneration: r.d.Generation,
		Replicas:           actualReplicas(all),
		AvailableReplicas:  availableReplicas(all),
		CollisionCount:     r.d.Status.CollisionCount,
	}
	s.UnavailableReplicas = max(0, desiredReplicas(all)-s.AvailableReplicas)
	terminating, known := int32(0), true
	for _, rs := range all {
		s.ReadyReplicas += rs.Status.ReadyReplicas
		if rs.Status.TerminatingReplicas == nil {
			known = false
			continue
		}
		terminating += *rs.Status.TerminatingReplicas
	}
	if known {
		s.TerminatingReplicas = &terminating
	}
	if r.new != nil {
		s.UpdatedReplicas = r.new.Status.Replicas
	}
	s.Conditions = append(s.Conditions, r.d.Status.Conditions...)
	if s.AvailableReplicas >= replicas(r.d.Spec.Replicas)-maxUnavailable(r.d) {
		r.set(&s, appsv1.DeploymentAvailable, corev1.ConditionTrue, minimumAvailable, "Deployment has minimum availability.")
	} else {
		r.set(&s, appsv1.DeploymentAvailable, corev1.ConditionFalse, minimumNotAvailable, "Deployment does not have minimum availability.")
	}
	return s
}

// syncStatus updates the status without the Progressing condition, for Deployments that are not being rolled out.
func (r *rollout) syncStatus(ctx context.Context) error {
	return r.write(ctx, r.compute())
}

// write writes s as the status of the Deployment, unless the Deployment already has it.
func (r *rollout) write(ctx context.Context, s appsv1.DeploymentStatus) error {
	if equality.Semantic.DeepEqual(r.d.Status, s) {
		return nil
	}
	r.d.Status = s
	return r.writeStatus(ctx, r.d)
}

// syncProgress updates the status with the Progressing and ReplicaFailure conditions. Without a progress deadline, it
// removes the Progressing condition. If nothing has changed, it schedules another sync at the progress deadline.
func (r *rollout) syncProgress(ctx context.Context) error {
	d, s := r.d, r.compute()
	if !hasDeadline(d) {
		removeCondition(&s, appsv1.DeploymentProgressing)
	}
	was := condition(&d.Status, appsv1.DeploymentProgressing)
	wasDone := s.Replicas == s.UpdatedReplicas && was != nil && was.Reason == newRSAvailable
	if hasDeadline(d) && !wasDone {
		what := fmt.Sprintf("Deployment %q", d.Name)
		if r.new != nil {
			what = fmt.Sprintf("ReplicaSet %q", r.new.Name)
		}
		switch {
		case complete(d, &s):
			r.set(&s, appsv1.DeploymentProgressing, corev1.ConditionTrue, newRSAvailable, what+" has successfully progressed.")
		case progressing(d, &s):
			// Update the condition at each step, because the deadline counts from the last update.
			c := r.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, rsUpdated, what+" is progressing.")
			if was != nil {
				if was.Status == corev1.ConditionTrue {
					c.LastTransitionTime = was.LastTransitionTime
				}
				removeCondition(&s, appsv1.DeploymentProgressing)
			}
			setCondition(&s, c)
		case isTimedOut(d, &s, r.env.Clock.Now()):
			r.set(&s, appsv1.DeploymentProgressing, corev1.ConditionFalse, timedOut, what+" has timed out progressing.")
		}
	}
	if c := r.failure(); c != nil {
		setCondition(&s, *c)
	} else {
		removeCondition(&s, appsv1.DeploymentReplicaFailure)
	}
	if equality.Semantic.DeepEqual(d.Status, s) {
		r.requeueAtDeadline(&s)
		return nil
	}
	return r.write(ctx, s)
}

// requeueAtDeadline schedules another sync at the progress deadline of a rollout with the status s, unless the rollout
// is complete or has timed out.
func (r *rollout) requeueAtDeadline(s *appsv1.DeploymentStatus) {
	c := condition(s, appsv1.DeploymentProgressing)
	if !hasDeadline(r.d) || c == nil || complete(r.d, s) || c.Reason == timedOut || c.Reason == newRSAvailable {
		return
	}
	// Add a second, because API timestamps have a resolution of seconds.
	after := deadline(r.d, c).Sub(r.env.Clock.Now()) + time.Second
	r.AddAfter(r.d.Namespace+"/"+r.d.Name, max(after, time.Second))
}

// failure returns the ReplicaFailure condition of a ReplicaSet that could not create or delete pods, as a condition of
// the Deployment, or nil. The new ReplicaSet takes precedence.
func (r *rollout) failure() *appsv1.DeploymentCondition {
	sets := r.old
	if r.new != nil {
		sets = append([]*appsv1.ReplicaSet{r.new}, r.old...)
	}
	for _, rs := range sets {
		if c := replicaset.Condition(rs.Status, appsv1.ReplicaSetReplicaFailure); c != nil {
			return &appsv1.DeploymentCondition{
				Type:               appsv1.DeploymentConditionType(c.Type),
				Status:             c.Status,
				LastTransitionTime: c.LastTransitionTime,
				LastUpdateTime:     c.LastTransitionTime,
				Reason:             c.Reason,
				Message:            c.Message,
			}
		}
	}
	return nil
}

// recordPaused records in the Progressing condition that the rollout was paused or resumed, so that the time in
// between does not count towards the deadline. It does nothing without a deadline, or if the deadline has already
// passed.
func (r *rollout) recordPaused(ctx context.Context) error {
	d := r.d
	if !hasDeadline(d) {
		return nil
	}
	c := condition(&d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == timedOut {
		return nil
	}
	noted := c != nil && c.Reason == pausedReason
	switch {
	case d.Spec.Paused && !noted:
		r.set(&d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, pausedReason, "Deployment is paused")
	case !d.Spec.Paused && noted:
		r.set(&d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, resumedReason, "Deployment is resumed")
	default:
		return nil
	}
	return r.writeStatus(ctx, d)
}
