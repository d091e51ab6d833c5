package telemetry

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// ContainerKind is the kind of a container as a metrics label.
type ContainerKind string

// Kinds of containers.
const (
	Container          ContainerKind = "container"
	InitContainer      ContainerKind = "init_container"
	EphemeralContainer ContainerKind = "ephemeral_container"
)

// Operation is an operation of a pod worker.
type Operation string

// Operations of pod workers.
const (
	Create     Operation = "create"
	Sync       Operation = "sync"
	Kill       Operation = "kill"
	Terminated Operation = "terminated"
)

type podMetrics struct {
	worked                              *prometheus.HistogramVec
	workerStart, start, sli, total      prometheus.Histogram
	statusSync, perPod                  prometheus.Histogram
	firstNetwork                        prometheus.Gauge
	started, failed, users, usersFailed prometheus.Counter
	containers, containersFailed, ended *prometheus.CounterVec
	restarted, rejected, preempted      *prometheus.CounterVec
	admitted                            *prometheus.CounterVec
	orphaned                            prometheus.Counter
	fellBack, sleepCut                  prometheus.Counter
	orphanDirs, orphanErrors            prometheus.Gauge
	networked                           atomic.Bool // a pod without host network has started
}

func (p *podMetrics) fill(s *set) {
	startup := []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	p.worked = s.histograms(prefix+"pod_worker_duration_seconds", "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", nil, "operation_type")
	p.workerStart = s.histogram(prefix+"pod_worker_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.", nil)
	p.start = s.histogram(prefix+"pod_start_duration_seconds", "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startup)
	p.sli = s.histogram(prefix+"pod_start_sli_duration_seconds", "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup)
	p.total = s.histogram(prefix+"pod_start_total_duration_seconds", "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup)
	p.firstNetwork = s.gauge(prefix+"first_network_pod_start_sli_duration_seconds", "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch")
	p.statusSync = s.histogram(prefix+"pod_status_sync_duration_seconds", "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.", []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60})
	p.perPod = s.histogram(prefix+"containers_per_pod_count", "[ALPHA] The number of containers per pod.", prometheus.ExponentialBuckets(1, 2, 5))
	p.started = s.counter(prefix+"started_pods_total", "[ALPHA] Cumulative number of pods started")
	p.failed = s.counter(prefix+"started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods")
	p.users = s.counter(prefix+"started_user_namespaced_pods_total", "[ALPHA] Cumulative number of pods with user namespaces started.")
	p.usersFailed = s.counter(prefix+"started_user_namespaced_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods with user namespaces.")
	p.containers = s.counters(prefix+"started_containers_total", "[ALPHA] Cumulative number of containers started", "container_type")
	p.containersFailed = s.counters(prefix+"started_containers_errors_total", "[ALPHA] Cumulative number of errors when starting containers", "container_type", "code")
	p.ended = s.counters(prefix+"terminated_containers_total", "[ALPHA] Cumulative number of container terminations.", "container_type", "exit_code", "reason")
	p.restarted = s.counters(prefix+"restarted_pods_total", "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)", "static")
	p.rejected = s.counters(prefix+"admission_rejections_total", "[ALPHA] Cumulative number pod admission rejections by the Kubelet.", "reason")
	p.admitted = s.counters(prefix+"pod_level_resources_admission_total", "[ALPHA] Number of pods admitted by the kubelet, by how their resources are specified and by QoS class.", "config_mode", "qos_class")
	p.preempted = s.counters(prefix+"preemptions", "[ALPHA] Cumulative number of pod preemptions by preemption resource", "preemption_signal")
	p.orphaned = s.counter(prefix+"orphaned_runtime_pods_total", "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.")
	p.fellBack = s.counter(prefix+"lifecycle_handler_http_fallbacks_total", "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.")
	p.sleepCut = s.counter(prefix+"sleep_action_terminated_early_total", "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes")
	p.orphanDirs = s.gauge("orphan_pod_cleaned_volumes", "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.")
	p.orphanErrors = s.gauge("orphan_pod_cleaned_volumes_errors", "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.")
	p.restarted.WithLabelValues("")
	p.restarted.WithLabelValues("true")
}

// OperationFinished records the duration of an operation.
func (m *Metrics) OperationFinished(o Operation, took time.Duration) {
	if m != nil {
		m.pods.worked.WithLabelValues(string(o)).Observe(took.Seconds())
	}
}

// WorkerStarted records how long a pod waited for its worker.
func (m *Metrics) WorkerStarted(pod *v1.Pod, after time.Duration) {
	if m != nil {
		m.pods.workerStart.Observe(after.Seconds())
		m.pods.perPod.Observe(float64(len(pod.Spec.Containers)))
	}
}

// PodRunning records how long a pod took to be running since it was first seen.
func (m *Metrics) PodRunning(after time.Duration) {
	if m != nil {
		m.pods.start.Observe(after.Seconds())
	}
}

// PodStarted records how long a pod took from its creation until its containers were observed as
// started. idle is the part for image pulls and init containers.
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

// stateful reports whether a pod has volumes of external storage, so that its start is excluded
// from the SLI.
func stateful(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil {
			return true
		}
	}
	return false
}

// StatusSynced records how long it took until the API had a changed status.
func (m *Metrics) StatusSynced(took time.Duration) {
	if m != nil {
		m.pods.statusSync.Observe(took.Seconds())
	}
}

// PodStarting records the creation of a pod's sandbox with its result.
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

// FirstStartFailed records that a container failed to start in a newly created sandbox, which is
// how an unsupported user namespace shows.
func (m *Metrics) FirstStartFailed(pod *v1.Pod) {
	if m != nil && pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		m.pods.usersFailed.Inc()
	}
}

// ContainerStarting records an attempt to start a container. code is the reason of its failure, or
// "".
func (m *Metrics) ContainerStarting(kind ContainerKind, code string) {
	if m == nil {
		return
	}
	m.pods.containers.WithLabelValues(string(kind)).Inc()
	if code != "" {
		m.pods.containersFailed.WithLabelValues(string(kind), code).Inc()
	}
}

// StatusChanged counts the containers that have terminated between two statuses.
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

func ended(list []v1.ContainerStatus, name string) bool {
	for i := range list {
		if list[i].Name == name {
			return list[i].State.Terminated != nil
		}
	}
	return false
}

// Restarted counts a pod that is restarted with the same UID.
func (m *Metrics) Restarted(static bool) {
	if m == nil {
		return
	}
	label := ""
	if static {
		label = "true"
	}
	m.pods.restarted.WithLabelValues(label).Inc()
}

// Orphaned counts an orphaned pod of the runtime.
func (m *Metrics) Orphaned() {
	if m != nil {
		m.pods.orphaned.Inc()
	}
}

// OrphansCleaned records the number of orphaned pods whose volumes were cleaned up, and of those for which
// that failed.
func (m *Metrics) OrphansCleaned(cleaned, failed int) {
	if m != nil {
		m.pods.orphanDirs.Set(float64(cleaned + failed))
		m.pods.orphanErrors.Set(float64(failed))
	}
}

// rejections are the reasons with their own label; all others are "Other".
var rejections = map[string]bool{
	"AppArmor": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true, "InvalidNodeInfo": true, "InitContainerRestartPolicyForbidden": true,
	"SupplementalGroupsPolicyNotSupported": true, "UnexpectedAdmissionError": true, "UnknownReason": true, "UnexpectedPredicateFailureType": true,
	"OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true, "PodLevelResourcesNotSupported": true, "PodFeatureUnsupported": true,
	"node(s) had taints that the pod didn't tolerate": true, "Evicted": true, "SysctlForbidden": true, "TopologyAffinityError": true, "NodeShutdown": true,
	"VolumeAttachmentLimitExceeded": true,
}

// Admitted records the admission of a pod.
//
// https://kep.k8s.io/2837
func (m *Metrics) Admitted(pod *v1.Pod, class v1.PodQOSClass) {
	if m == nil {
		return
	}
	asks := func(c v1.Container) bool { return len(c.Resources.Requests)+len(c.Resources.Limits) > 0 }
	whole := resource.IsPodLevelResourcesSet(pod)
	each := slices.ContainsFunc(pod.Spec.Containers, asks) || slices.ContainsFunc(pod.Spec.InitContainers, asks)
	mode := ""
	switch {
	case whole && each:
		mode = "pod_and_container_level"
	case whole:
		mode = "pod_level"
	case each:
		mode = "container_level"
	}
	m.pods.admitted.WithLabelValues(mode, strings.ToLower(string(class))).Inc()
}

// Rejected counts a rejected pod.
func (m *Metrics) Rejected(reason string) {
	if m == nil {
		return
	}
	switch {
	case rejections[reason]:
	case strings.HasPrefix(reason, "OutOf"):
		reason = "OutOfExtendedResources"
	default:
		reason = "Other"
	}
	m.pods.rejected.WithLabelValues(reason).Inc()
}

// Preempted counts a preempted pod. resource is the resource that was insufficient; it may be
// empty.
func (m *Metrics) Preempted(resource string) {
	if m != nil {
		m.pods.preempted.WithLabelValues(resource).Inc()
	}
}

// HookFallback counts an HTTPS hook that fell back to HTTP.
func (m *Metrics) HookFallback() {
	if m != nil {
		m.pods.fellBack.Inc()
	}
}

// SleepTerminatedEarly counts a sleep hook that was terminated early.
func (m *Metrics) SleepTerminatedEarly() {
	if m != nil {
		m.pods.sleepCut.Inc()
	}
}
