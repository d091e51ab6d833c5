package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restarts returns the sum of the container restarts in pods.
func restarts(pods []*corev1.Pod) (n int32) {
	for _, p := range pods {
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				n += list[i].RestartCount
			}
		}
	}
	return n
}

// failure reports whether the Job fails, with the reason and message of its condition. A failure that is already in the
// status is final.
func (s *state) failure() (reason, message string, failed bool) {
	j := s.job
	if c := condition(&j.Status, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		return c.Reason, c.Message, true
	}
	limit := int32(6)
	if j.Spec.BackoffLimit != nil {
		limit = *j.Spec.BackoffLimit
	} else if j.Spec.BackoffLimitPerIndex != nil {
		limit = 1<<31 - 1
	}
	switch {
	case s.failJobMessage != "":
		return batchv1.JobReasonPodFailurePolicy, s.failJobMessage, true
	case s.failed > limit, j.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && s.pastRestarts(limit):
		return batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit", true
	case s.deadline() <= 0:
		return batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline", true
	}
	if isIndexed(j) && j.Spec.BackoffLimitPerIndex != nil {
		n := s.failedIndexes.total()
		if j.Spec.MaxFailedIndexes != nil && n > int(*j.Spec.MaxFailedIndexes) {
			return batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes", true
		}
		if n > 0 && n+s.completedIndexes.total() >= s.limit() {
			return batchv1.JobReasonFailedIndexes, "Job has failed indexes", true
		}
	}
	return "", "", false
}

// pastRestarts reports whether the containers of a Job with restart policy OnFailure have restarted so often that the
// backoff limit is reached.
func (s *state) pastRestarts(limit int32) bool {
	n := restarts(s.running)
	if limit == 0 {
		return n > 0
	}
	return n >= limit
}

// deadline returns how long the Job may still be active according to spec.activeDeadlineSeconds. Without a deadline, or
// while the Job is suspended, it returns a day.
func (s *state) deadline() time.Duration {
	if s.job.Spec.ActiveDeadlineSeconds == nil || s.next.StartTime == nil || s.suspended() {
		return 24 * time.Hour
	}
	return s.next.StartTime.Add(time.Duration(*s.job.Spec.ActiveDeadlineSeconds) * time.Second).Sub(s.env.Clock.Now())
}

// success reports whether the Job is complete, with the reason and message of its condition. A success that is already
// in the status is final.
func (s *state) success() (reason, message string, done bool) {
	j := s.job
	if c := condition(&j.Status, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		return c.Reason, c.Message, true
	}
	if msg, ok := matchSuccessPolicy(j, s.completedIndexes); ok {
		return batchv1.JobReasonSuccessPolicy, msg, true
	}
	if j.Spec.Completions == nil {
		// A work queue: one success means that it is empty. The other pods finish.
		done = s.succeeded > 0 && len(s.active) == 0
	} else {
		done = s.succeeded >= *j.Spec.Completions && len(s.active) == 0
	}
	return batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods", done
}

// set sets a condition in s.next and reports whether it changed. A missing condition is not added with status False.
func (s *state) set(kind batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) bool {
	now := metav1.NewTime(s.env.Clock.Now())
	c := condition(&s.next, kind)
	if c == nil {
		if status == corev1.ConditionFalse {
			return false
		}
		s.next.Conditions = append(s.next.Conditions, batchv1.JobCondition{
			Type: kind, Status: status, LastProbeTime: now, LastTransitionTime: now, Reason: reason, Message: message,
		})
		return true
	}
	if c.Status == status && c.Reason == reason && c.Message == message {
		return false
	}
	if c.Status != status {
		c.LastTransitionTime = now
	}
	c.Status, c.Reason, c.Message, c.LastProbeTime = status, reason, message, now
	return true
}
