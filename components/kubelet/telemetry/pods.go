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

// ContainerKind is the kind of a container in the words of metrics.
type ContainerKind string

// Kinds of containers.
const (
	Container          ContainerKind = "container"
	InitContainer      ContainerKind = "init_container"
	EphemeralContainer ContainerKind = "ephemeral_container"
)

// Operation is what a pod's worker does.
type Operation string

// Operations of workers.
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
	networked                           atomic.Bool // a pod with a network of its own has started
}

func (p *podMetrics) fill(s *set) {
	startup := []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	p.worked = s.histograms(own+"pod_worker_duration_seconds", "[ALPHA] Duration in seconds of one piece of work for a pod, by its kind: create, sync, kill or terminated", nil, "operation_type")
	p.workerStart = s.histogram(own+"pod_worker_start_duration_seconds", "[ALPHA] Duration in seconds from the kubelet's first sight of a pod to its worker's start.", nil)
	p.start = s.histogram(own+"pod_start_duration_seconds", "[ALPHA] Duration in seconds from the kubelet's first sight of a pod to its running", startup)
	p.sli = s.histogram(own+"pod_start_sli_duration_seconds", "[ALPHA] Duration in seconds of a pod's start without the pulling of images and its init containers, from its creation until all its containers are seen to have started", startup)
	p.total = s.histogram(own+"pod_start_total_duration_seconds", "[ALPHA] Duration in seconds of a pod's start with the pulling of images and its init containers, from its creation until all its containers are seen to have started", startup)
	p.firstNetwork = s.gauge(own+"first_network_pod_start_sli_duration_seconds", "[INTERNAL] Duration in seconds of the start of the first pod with a network of its own, without the pulling of images and its init containers")
	p.statusSync = s.histogram(own+"pod_status_sync_duration_seconds", "[ALPHA] Duration in seconds from a change of a pod's status until the API has it.", []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60})
	p.perPod = s.histogram(own+"containers_per_pod_count", "[ALPHA] The number of containers per pod.", prometheus.ExponentialBuckets(1, 2, 5))
	p.started = s.counter(own+"started_pods_total", "[ALPHA] Cumulative number of pods started")
	p.failed = s.counter(own+"started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods")
	p.users = s.counter(own+"started_user_namespaced_pods_total", "[ALPHA] Cumulative number of pods with user namespaces started.")
	p.usersFailed = s.counter(own+"started_user_namespaced_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods with user namespaces.")
	p.containers = s.counters(own+"started_containers_total", "[ALPHA] Cumulative number of containers started", "container_type")
	p.containersFailed = s.counters(own+"started_containers_errors_total", "[ALPHA] Cumulative number of errors when starting containers", "container_type", "code")
	p.ended = s.counters(own+"terminated_containers_total", "[ALPHA] Cumulative number of container terminations.", "container_type", "exit_code", "reason")
	p.restarted = s.counters(own+"restarted_pods_total", "[ALPHA] Number of pods that were run anew because they were deleted and made again with the same UID, as static pods are", "static")
	p.rejected = s.counters(own+"admission_rejections_total", "[ALPHA] Cumulative number of pods that the kubelet refused.", "reason")
	p.admitted = s.counters(own+"pod_level_resources_admission_total", "[ALPHA] Number of pods that the kubelet took in, by where they say what they need and by their class.", "config_mode", "qos_class")
	p.preempted = s.counters(own+"preemptions", "[ALPHA] Cumulative number of pods that went for critical ones, by the resource that was short", "preemption_signal")
	p.orphaned = s.counter(own+"orphaned_runtime_pods_total", "[ALPHA] Number of pods that the runtime had and nobody wanted, as when a pod is deleted by force while the kubelet is away.")
	p.fellBack = s.counter(own+"lifecycle_handler_http_fallbacks_total", "[ALPHA] The number of hooks that were answered in HTTP where HTTPS was asked for.")
	p.sleepCut = s.counter(own+"sleep_action_terminated_early_total", "[ALPHA] The number of hooks that were to sleep and were cut short")
	p.orphanDirs = s.gauge("orphan_pod_cleaned_volumes", "[ALPHA] The number of pods that nobody wants whose volumes the last sweep cleaned.")
	p.orphanErrors = s.gauge("orphan_pod_cleaned_volumes_errors", "[ALPHA] The number of pods that nobody wants whose volumes the last sweep could not clean.")
	p.restarted.WithLabelValues("")
	p.restarted.WithLabelValues("true")
}

// Worked notes a piece of work for a pod.
func (m *Metrics) Worked(o Operation, took time.Duration) {
	if m != nil {
		m.pods.worked.WithLabelValues(string(o)).Observe(took.Seconds())
	}
}

// WorkerStarted notes how long a pod waited for its worker.
func (m *Metrics) WorkerStarted(pod *v1.Pod, after time.Duration) {
	if m != nil {
		m.pods.workerStart.Observe(after.Seconds())
		m.pods.perPod.Observe(float64(len(pod.Spec.Containers)))
	}
}

// PodRuns notes how long it took a pod to run, since it was first seen.
func (m *Metrics) PodRuns(after time.Duration) {
	if m != nil {
		m.pods.start.Observe(after.Seconds())
	}
}

// PodStarted notes how long a pod took from its creation until its containers were
// seen to have started; idle of it went to images and init containers.
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

// stateful tells whether the start of a pod is one of those that say nothing of
// the node: it waits for volumes of others.
func stateful(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil {
			return true
		}
	}
	return false
}

// StatusTold notes how long it took until the API had a pod's new status.
func (m *Metrics) StatusTold(took time.Duration) {
	if m != nil {
		m.pods.statusSync.Observe(took.Seconds())
	}
}

// PodStarting notes that a pod's sandbox is being made; err is what came of it.
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

// FirstStartFailed notes that a container failed to start in a sandbox that was
// made for it: that is where users of a pod's own show that they cannot be had.
func (m *Metrics) FirstStartFailed(pod *v1.Pod) {
	if m != nil && pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		m.pods.usersFailed.Inc()
	}
}

// ContainerStarting notes an attempt at a container; code is the reason why it
// failed, in the words of its status, empty where it did not.
func (m *Metrics) ContainerStarting(kind ContainerKind, code string) {
	if m == nil {
		return
	}
	m.pods.containers.WithLabelValues(string(kind)).Inc()
	if code != "" {
		m.pods.containersFailed.WithLabelValues(string(kind), code).Inc()
	}
}

// StatusChanged counts the containers that have ended by what a pod's status said
// and says now.
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

// Restarted counts a pod that is run anew under its former UID.
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

// Orphaned counts a pod of the runtime that nobody wants.
func (m *Metrics) Orphaned() {
	if m != nil {
		m.pods.orphaned.Inc()
	}
}

// Swept tells of how many pods that nobody wants the volumes were cleaned, and of
// how many they were not.
func (m *Metrics) Swept(cleaned, failed int) {
	if m != nil {
		m.pods.orphanDirs.Set(float64(cleaned + failed))
		m.pods.orphanErrors.Set(float64(failed))
	}
}

// rejections are the reasons that are told apart; others are "Other".
var rejections = map[string]bool{
	"AppArmor": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true, "InvalidNodeInfo": true, "InitContainerRestartPolicyForbidden": true,
	"SupplementalGroupsPolicyNotSupported": true, "UnexpectedAdmissionError": true, "UnknownReason": true, "UnexpectedPredicateFailureType": true,
	"OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true, "PodLevelResourcesNotSupported": true, "PodFeatureUnsupported": true,
	"node(s) had taints that the pod didn't tolerate": true, "Evicted": true, "SysctlForbidden": true, "TopologyAffinityError": true, "NodeShutdown": true,
	"VolumeAttachmentLimitExceeded": true,
}

// Admitted notes that a pod of a class was taken in.
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

// Rejected counts a pod that was refused.
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

// Preempted counts a pod that goes for a critical one; resource is what was short,
// and may be empty.
func (m *Metrics) Preempted(resource string) {
	if m != nil {
		m.pods.preempted.WithLabelValues(resource).Inc()
	}
}

// HookFellBack counts a hook that was answered in HTTP where HTTPS was asked for.
func (m *Metrics) HookFellBack() {
	if m != nil {
		m.pods.fellBack.Inc()
	}
}

// SleepCut counts a hook that was to sleep longer than it could.
func (m *Metrics) SleepCut() {
	if m != nil {
		m.pods.sleepCut.Inc()
	}
}
