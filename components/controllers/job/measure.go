package job

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/podfacts"
)

// measures are upstream's metrics of Jobs.
type measures struct {
	duration                                                                *prometheus.HistogramVec
	syncs, finished, pods, byPolicy, terminated, others, indexes, creations *prometheus.CounterVec
}

func newMeasures() *measures {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "job_controller_" + name, Help: help}, labels)
	}
	return &measures{
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

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.syncs, m.finished, m.pods, m.byPolicy, m.terminated, m.others, m.indexes, m.creations}
}

// mode is the label of a Job's completion mode.
func mode(j *batchv1.Job) string {
	if isIndexed(j) {
		return "Indexed"
	}
	return "NonIndexed"
}

// synced counts a sync that began then and did that.
func (m *measures) synced(j *batchv1.Job, took time.Duration, action string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.duration.WithLabelValues(mode(j), result, action).Observe(took.Seconds())
	m.syncs.WithLabelValues(mode(j), result, action).Inc()
}

// over counts a Job that has just ended, for that reason.
func (m *measures) over(j *batchv1.Job, well bool, reason string) {
	result := "failed"
	if well {
		result = "succeeded"
	}
	m.finished.WithLabelValues(mode(j), result, reason).Inc()
}

// counted counts pods that became numbers of a written status. That none did is
// counted, too, so that there is a series of them.
func (m *measures) counted(j *batchv1.Job, was, is *batchv1.JobStatus) {
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

// seen counts the end of a pod that is tracked, and of its tracking: old is nil
// for one that is new, cur for one that is gone.
func (m *measures) seen(old, cur *corev1.Pod) {
	was, is := old != nil && endedTracked(old), cur != nil && endedTracked(cur)
	switch {
	case is && !was:
		m.terminated.WithLabelValues("add").Inc()
	case was && !is:
		m.terminated.WithLabelValues("delete").Inc()
	}
}

func endedTracked(p *corev1.Pod) bool {
	return podfacts.Terminal(p) && slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer)
}

// created counts the pods that were made for a Job, and those that could not be, by
// what they are for: failed pods and terminating ones are those of the Job before.
func (m *measures) created(j *batchv1.Job, failedBefore int32, terminating, made, failed int) {
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
