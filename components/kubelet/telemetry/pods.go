package telemetry

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// ContainerKind is the kind of a container as a metrics label.
type ContainerKind string

// Container, InitContainer and EphemeralContainer are the values of the label of a container's kind. InitContainer
// includes sidecars.
const (
	Container          ContainerKind = "container"
	InitContainer      ContainerKind = "init_container"
	EphemeralContainer ContainerKind = "ephemeral_container"
)

// Operation is an operation of a pod worker as a metrics label.
type Operation string

// Create and the other constants are the labels of the operations of pod workers: the first start of a pod, later
// starts of containers, stopping the containers, and the cleanup after that.
const (
	Create     Operation = "create"
	Sync       Operation = "sync"
	Kill       Operation = "kill"
	Terminated Operation = "terminated"
)

// podMetrics are the metrics of pod workers and of the start of pods and containers.
type podMetrics struct {
	worked                              *prometheus.HistogramVec
	workerStart, start, sli, total      prometheus.Histogram
	statusSync, perPod                  prometheus.Histogram
	firstNetwork                        prometheus.Gauge
	started, failed, users, usersFailed prometheus.Counter
	containers, containersFailed, ended *prometheus.CounterVec
	networked                           atomic.Bool // a pod without host network has started
}

func (m *podMetrics) fill(s *set) {
	startup := []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	m.worked = s.histograms(prefix+"pod_worker_duration_seconds", "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", nil, "operation_type")
	m.workerStart = s.histogram(prefix+"pod_worker_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.", nil)
	m.start = s.histogram(prefix+"pod_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startup)
	m.sli = s.histogram(prefix+"pod_start_sli_duration_seconds", "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup)
	m.total = s.histogram(prefix+"pod_start_total_duration_seconds", "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup)
	m.firstNetwork = s.gauge(prefix+"first_network_pod_start_sli_duration_seconds", "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch")
	m.statusSync = s.histogram(prefix+"pod_status_sync_duration_seconds", "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.", []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60})
	m.perPod = s.histogram(prefix+"containers_per_pod_count", "[ALPHA] The number of containers per pod.", prometheus.ExponentialBuckets(1, 2, 5))
	m.started = s.counter(prefix+"started_pods_total", "[ALPHA] Cumulative number of pods started")
	m.failed = s.counter(prefix+"started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods")
	m.users = s.counter(prefix+"started_user_namespaced_pods_total", "[ALPHA] Cumulative number of pods with user namespaces started.")
	m.usersFailed = s.counter(prefix+"started_user_namespaced_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods with user namespaces.")
	m.containers = s.counters(prefix+"started_containers_total", "[ALPHA] Cumulative number of containers started", "container_type")
	m.containersFailed = s.counters(prefix+"started_containers_errors_total", "[ALPHA] Cumulative number of errors when starting containers", "container_type", "code")
	m.ended = s.counters(prefix+"terminated_containers_total", "[ALPHA] Cumulative number of container terminations.", "container_type", "exit_code", "reason")
}

// OperationFinished records the duration of an operation of a pod worker.
func (m *Metrics) OperationFinished(o Operation, took time.Duration) {
	if m != nil {
		m.pods.worked.WithLabelValues(string(o)).Observe(took.Seconds())
	}
}

// WorkerStarted records how long a pod has waited for its worker since the kubelet received the pod, and its
// number of app containers.
func (m *Metrics) WorkerStarted(pod *v1.Pod, after time.Duration) {
	if m != nil {
		m.pods.workerStart.Observe(after.Seconds())
		m.pods.perPod.Observe(float64(len(pod.Spec.Containers)))
	}
}

// PodRunning records how long a pod took from when the kubelet first received it until its phase was Running.
func (m *Metrics) PodRunning(after time.Duration) {
	if m != nil {
		m.pods.start.Observe(after.Seconds())
	}
}

// PodStarted records how long a pod took from its creation until the API reported all its containers as
// started. idle is the part for image pulls and init containers, which is excluded from the SLI. A pod with
// external storage is excluded from the SLI as a whole.
func (m *Metrics) PodStarted(pod *v1.Pod, total, idle time.Duration) {
	if m == nil {
		return
	}
	m.pods.total.Observe(total.Seconds())
	if stateful(pod) {
		return
	}
	m.pods.sli.Observe((total - idle).Seconds())
	if !pod.Spec.HostNetwork && m.pods.networked.CompareAndSwap(false, true) {
		m.pods.firstNetwork.Set((total - idle).Seconds())
	}
}

// stateful reports whether a pod has volumes of external storage, so that its start is excluded from the SLI
// metrics.
func stateful(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil {
			return true
		}
	}
	return false
}

// StatusSynced records how long it took until the API had a changed status of a pod.
func (m *Metrics) StatusSynced(took time.Duration) {
	if m != nil {
		m.pods.statusSync.Observe(took.Seconds())
	}
}

// PodStarting counts an attempt to create a pod's sandbox, and separately also one of a pod with a user
// namespace. err is its result.
func (m *Metrics) PodStarting(pod *v1.Pod, err error) {
	if m == nil {
		return
	}
	users := pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
	m.pods.started.Inc()
	if users {
		m.pods.users.Inc()
	}
	if err == nil {
		return
	}
	m.pods.failed.Inc()
	if users {
		m.pods.usersFailed.Inc()
	}
}

// FirstStartFailed counts a failure of a pod with a user namespace: a container failed to start in a newly
// created sandbox, which is how an unsupported user namespace shows.
func (m *Metrics) FirstStartFailed(pod *v1.Pod) {
	if m != nil && pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		m.pods.usersFailed.Inc()
	}
}

// ContainerStarting counts an attempt to start a container. code is the reason of its failure, or "" if it
// has succeeded.
func (m *Metrics) ContainerStarting(kind ContainerKind, code string) {
	if m == nil {
		return
	}
	m.pods.containers.WithLabelValues(string(kind)).Inc()
	if code != "" {
		m.pods.containersFailed.WithLabelValues(string(kind), code).Inc()
	}
}

// StatusChanged counts the containers that have terminated between the statuses before and now of a pod.
func (m *Metrics) StatusChanged(before, now *v1.PodStatus) {
	if m == nil {
		return
	}
	count := func(before, now []v1.ContainerStatus, kind ContainerKind) {
		for i := range now {
			end := now[i].State.Terminated
			if end == nil || ended(before, now[i].Name) {
				continue
			}
			m.pods.ended.WithLabelValues(string(kind), strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	}
	count(before.InitContainerStatuses, now.InitContainerStatuses, InitContainer)
	count(before.ContainerStatuses, now.ContainerStatuses, Container)
	count(before.EphemeralContainerStatuses, now.EphemeralContainerStatuses, EphemeralContainer)
}

// ended reports whether list has the container of that name and its state is Terminated.
func ended(list []v1.ContainerStatus, name string) bool {
	for i := range list {
		if list[i].Name == name {
			return list[i].State.Terminated != nil
		}
	}
	return false
}
