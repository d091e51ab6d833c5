package job

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/pod/podutil"
)

// metrics are the metrics of the Job controller, with upstream's names and labels.
type metrics struct {
	duration                                                                *prometheus.HistogramVec
	syncs, finished, pods, byPolicy, terminated, others, indexes, creations *prometheus.CounterVec
}

// newMetrics creates the metrics without registering them.
func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "job_controller_" + name, Help: help}, labels)
	}
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "job_controller_job_sync_duration_seconds", Help: "[STABLE] The time it took to sync a job",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
		syncs:    counter("job_syncs_total", "[STABLE] The number of job syncs", "completion_mode", "result", "action"),
		finished: counter("jobs_finished_total", "[STABLE] The number of finished jobs", "completion_mode", "result", "reason"),
		pods:     counter("job_pods_finished_total", "[STABLE] The number of finished Pods that are fully tracked", "completion_mode", "result"),
		byPolicy: counter("pod_failures_handled_by_failure_policy_total", "[BETA] The number of failed Pods handled by failure policy with\n\t\t\trespect to the failure policy action applied based on the matched\n\t\t\trule. Possible values of the action label correspond to the\n\t\t\tpossible values for the failure policy rule action, which are:\n\t\t\t\"FailJob\", \"Ignore\" and \"Count\".", "action"),
		terminated: counter("terminated_pods_tracking_finalizer_total",
			"[BETA] The number of terminated pods (phase=Failed|Succeeded)\nthat have the finalizer batch.kubernetes.io/job-tracking\nThe event label can be \"add\" or \"delete\".", "event"),
		indexes: counter("job_finished_indexes_total",
			"[ALPHA] The number of finished indexes. Possible values for the\n\t\t\tstatus label are: \"succeeded\", \"failed\". Possible values for the\n\t\t\tbackoffLimit label are: \"perIndex\" and \"global\"", "status", "backoffLimit"),
		creations: counter("job_pods_creation_total",
			"[ALPHA] The number of Pods created by the Job controller labelled with a reason for the Pod creation.\nThis metric also distinguishes between Pods created using different PodReplacementPolicy settings.\nPossible values of the \"reason\" label are:\n\"new\", \"recreate_terminating_or_failed\", \"recreate_failed\".\nPossible values of the \"status\" label are:\n\"succeeded\", \"failed\".", "reason", "status"),
		others: counter("jobs_by_external_controller_total", "[ALPHA] The number of Jobs managed by an external controller", "controller_name"),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.syncs, m.finished, m.pods, m.byPolicy, m.terminated, m.others, m.indexes, m.creations}
}

// mode returns the value of the metric label for the completion mode of a Job.
func mode(j *batchv1.Job) string {
	if isIndexed(j) {
		return "Indexed"
	}
	return "NonIndexed"
}

// synced records the duration and result of a sync. action is what the sync did.
func (m *metrics) synced(j *batchv1.Job, took time.Duration, action string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.duration.WithLabelValues(mode(j), result, action).Observe(took.Seconds())
	m.syncs.WithLabelValues(mode(j), result, action).Inc()
}

// jobFinished counts a Job that finished: successfully if well is true. reason is that of its condition.
func (m *metrics) jobFinished(j *batchv1.Job, well bool, reason string) {
	result := "failed"
	if well {
		result = "succeeded"
	}
	m.finished.WithLabelValues(mode(j), result, reason).Inc()
}

// counted adds the progress of a Job to the metrics: the difference of the numbers of pods and indexes between the
// status was and the status is, which has just been written. It adds zero if nothing has changed, so that the time
// series exist.
func (m *metrics) counted(j *batchv1.Job, was, is *batchv1.JobStatus) {
	succeeded := float64(max(is.Succeeded-was.Succeeded, 0))
	if isIndexed(j) {
		n, limit := int(*j.Spec.Completions), "global"
		more := func(was, is string) float64 {
			return float64(max(parseIndexes(is, n).total()-parseIndexes(was, n).total(), 0))
		}
		succeeded = more(was.CompletedIndexes, is.CompletedIndexes)
		if j.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
			if failed := more(ptr.Deref(was.FailedIndexes, ""), ptr.Deref(is.FailedIndexes, "")); failed > 0 {
				m.indexes.WithLabelValues("failed", limit).Add(failed)
			}
		}
		m.indexes.WithLabelValues("succeeded", limit).Add(succeeded)
	}
	m.pods.WithLabelValues(mode(j), "succeeded").Add(succeeded)
	m.pods.WithLabelValues(mode(j), "failed").Add(float64(max(is.Failed-was.Failed, 0)))
}

// seen counts when a pod with the finalizer terminates and when its finalizer is removed. old is nil for a new pod, and
// cur is nil for a deleted one.
func (m *metrics) seen(old, cur *corev1.Pod) {
	was, is := old != nil && endedTracked(old), cur != nil && endedTracked(cur)
	switch {
	case is && !was:
		m.terminated.WithLabelValues("add").Inc()
	case was && !is:
		m.terminated.WithLabelValues("delete").Inc()
	}
}

// endedTracked reports whether a pod has terminated and has the finalizer.
func endedTracked(p *corev1.Pod) bool {
	return podutil.Terminal(p) && slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer)
}

// created counts the pods that were created for a Job (made) and the failed creations (failed), with the reason of the
// creation. failedBefore and terminating are the numbers of the Job's failed and terminating pods before.
func (m *metrics) created(j *batchv1.Job, failedBefore int32, terminating, made, failed int) {
	reason := "new"
	switch {
	case failedBefore > 0 && ptr.Deref(j.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed:
		reason = "recreate_failed"
	case failedBefore > 0 || terminating > 0:
		reason = "recreate_terminating_or_failed"
	}
	for status, n := range map[string]int{"succeeded": made, "failed": failed} {
		if n > 0 {
			m.creations.WithLabelValues(reason, status).Add(float64(n))
		}
	}
}
