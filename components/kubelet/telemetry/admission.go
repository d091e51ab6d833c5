package telemetry

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// admissionMetrics are the metrics of pods that are admitted, rejected, preempted, restarted and orphaned.
type admissionMetrics struct {
	restarted, rejected, preempted, admitted *prometheus.CounterVec
	orphaned                                 prometheus.Counter
	orphanDirs, orphanErrors                 prometheus.Gauge
}

func (m *admissionMetrics) fill(s *set) {
	m.restarted = s.counters(prefix+"restarted_pods_total", "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)", "static")
	m.rejected = s.counters(prefix+"admission_rejections_total", "[ALPHA] Cumulative number pod admission rejections by the Kubelet.", "reason")
	m.admitted = s.counters(prefix+"pod_level_resources_admission_total", "[ALPHA] Number of pods admitted by the kubelet, by how their resources are specified and by QoS class.", "config_mode", "qos_class")
	m.preempted = s.counters(prefix+"preemptions", "[ALPHA] Cumulative number of pod preemptions by preemption resource", "preemption_signal")
	m.orphaned = s.counter(prefix+"orphaned_runtime_pods_total", "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.")
	m.orphanDirs = s.gauge("orphan_pod_cleaned_volumes", "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.")
	m.orphanErrors = s.gauge("orphan_pod_cleaned_volumes_errors", "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.")
	m.restarted.WithLabelValues("")
	m.restarted.WithLabelValues("true")
}

// Restarted counts a pod that is run again with the same UID after it was removed from its source. static is true
// for a static pod.
func (m *Metrics) Restarted(static bool) {
	if m == nil {
		return
	}
	label := ""
	if static {
		label = "true"
	}
	m.admission.restarted.WithLabelValues(label).Inc()
}

// Orphaned counts a pod that was found in the container runtime but in no source.
func (m *Metrics) Orphaned() {
	if m != nil {
		m.admission.orphaned.Inc()
	}
}

// OrphansCleaned records the numbers of orphaned pods whose volumes were removed (cleaned), and of those whose
// volumes could not be removed (failed).
func (m *Metrics) OrphansCleaned(cleaned, failed int) {
	if m != nil {
		m.admission.orphanDirs.Set(float64(cleaned + failed))
		m.admission.orphanErrors.Set(float64(failed))
	}
}

// rejections are the reasons that are labels of the metric of rejected pods; all others are counted as
// "Other".
var rejections = map[string]bool{
	"AppArmor": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true, "InvalidNodeInfo": true, "InitContainerRestartPolicyForbidden": true,
	"SupplementalGroupsPolicyNotSupported": true, "UnexpectedAdmissionError": true, "UnknownReason": true, "UnexpectedPredicateFailureType": true,
	"OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true, "PodLevelResourcesNotSupported": true, "PodFeatureUnsupported": true,
	"node(s) had taints that the pod didn't tolerate": true, "Evicted": true, "SysctlForbidden": true, "TopologyAffinityError": true, "NodeShutdown": true,
	"VolumeAttachmentLimitExceeded": true,
}

// Admitted counts an admitted pod by its QoS class and by how its resources are specified.
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
	m.admission.admitted.WithLabelValues(mode, strings.ToLower(string(class))).Inc()
}

// Rejected counts a pod that was not admitted. reason is that of the pod's status. A reason that is not in rejections
// is counted as "OutOfExtendedResources" if it begins with "OutOf", and otherwise as "Other".
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
	m.admission.rejected.WithLabelValues(reason).Inc()
}

// Preempted counts a preempted pod. resource is the resource that was insufficient for the critical pod; it
// may be empty.
func (m *Metrics) Preempted(resource string) {
	if m != nil {
		m.admission.preempted.WithLabelValues(resource).Inc()
	}
}
