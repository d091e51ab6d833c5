package admission

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
)

// securityMetrics counts Pod Security evaluations, exemptions and errors. The metrics are those of the Pod Security
// library, whose own metrics are global to the process. It implements metrics.Recorder.
type securityMetrics struct {
	current                         psaapi.Version
	evaluations, exemptions, errors *prometheus.CounterVec
}

// newSecurityMetrics creates the metrics and registers them with r unless r is nil. current is the
// Kubernetes version of this server; policies of later versions are counted as "future".
func newSecurityMetrics(r prometheus.Registerer, current psaapi.Version) (*securityMetrics, error) {
	m := &securityMetrics{
		current: current,
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_evaluations_total", Help: "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.",
		}, []string{"decision", "policy_level", "policy_version", "mode", "request_operation", "resource", "subresource"}),
		exemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_exemptions_total", Help: "[ALPHA] Number of exempt requests, not counting ignored or out of scope requests.",
		}, []string{"request_operation", "resource", "subresource"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_errors_total", Help: "[ALPHA] Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted profile being used for evaluation.",
		}, []string{"fatal", "request_operation", "resource", "subresource"}),
	}
	for _, op := range []string{"create", "update"} {
		m.evaluations.WithLabelValues("allow", "privileged", "latest", "enforce", op, "pod", "")
		m.exemptions.WithLabelValues(op, "pod", "")
		m.exemptions.WithLabelValues(op, "controller", "")
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.evaluations, m.exemptions, m.errors} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of pod security: %w", err)
		}
	}
	return m, nil
}

// RecordEvaluation counts one evaluation of a policy level with its decision. The version label is "latest" for the
// privileged level, which is the same in all versions, and "future" for versions after that of this server.
func (m *securityMetrics) RecordEvaluation(d metrics.Decision, by psaapi.LevelVersion, mode metrics.Mode, a psaapi.Attributes) {
	version := by.Version.String()
	switch {
	case by.Version.Latest() || by.Level == psaapi.LevelPrivileged: // the privileged level is the same in all versions
		version = "latest"
	case m.current.Older(by.Version):
		version = "future"
	}
	m.evaluations.WithLabelValues(string(d), string(by.Level), version, string(mode), strings.ToLower(string(a.GetOperation())), resourceLabel(a), a.GetSubresource()).Inc()
}

// RecordExemption counts a request that the configuration exempts from Pod Security.
func (m *securityMetrics) RecordExemption(a psaapi.Attributes) {
	m.exemptions.WithLabelValues(strings.ToLower(string(a.GetOperation())), resourceLabel(a), a.GetSubresource()).Inc()
}

// RecordError counts an error of an evaluation. fatal means that the request was rejected because
// of it.
func (m *securityMetrics) RecordError(fatal bool, a psaapi.Attributes) {
	m.errors.WithLabelValues(strconv.FormatBool(fatal), strings.ToLower(string(a.GetOperation())), resourceLabel(a), a.GetSubresource()).Inc()
}

// resourceLabel returns the metric label for the kind of the checked object: pod, namespace, or
// controller for objects that contain a pod template.
func resourceLabel(a psaapi.Attributes) string {
	switch a.GetResource().GroupResource() {
	case corev1.Resource("pods"):
		return "pod"
	case corev1.Resource("namespaces"):
		return "namespace"
	}
	return "controller"
}
