package aggregation

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

// Collectors returns the collectors of the aggregator's metrics, for registration.
func (a *Aggregator) Collectors() []prometheus.Collector {
	return []prometheus.Collector{availability{a}, a.unavailableTotal, a.certificateMetrics.names, a.certificateMetrics.signatures}
}

// newUnavailableTotal creates the metric that counts how often APIServices became unavailable, by name and reason.
func newUnavailableTotal() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})
}

// certificateMetrics counts connections to other servers whose certificate has no subject alternative names
// or is signed with SHA-1.
type certificateMetrics struct{ names, signatures *metrics.Counter }

// newCertificateMetrics creates the counters of requests to aggregated API servers whose serving certificate has no
// SAN or a SHA-1 signature.
func newCertificateMetrics() *certificateMetrics {
	counter := func(name, help string) *metrics.Counter {
		return metrics.NewCounter(&metrics.CounterOpts{
			Name: "apiserver_kube_aggregator_" + name, StabilityLevel: metrics.ALPHA,
			Help: "Counts the number of requests to servers " + help + " (either/or, based on the runtime environment)",
		})
	}
	o := &certificateMetrics{
		names:      counter("x509_missing_san_total", "missing SAN extension in their serving certificate OR the number of connection failures due to the lack of x509 certificate SAN extension missing"),
		signatures: counter("x509_insecure_sha1_total", "with insecure SHA1 signatures in their serving certificate OR the number of connection failures due to the insecure SHA1 signatures"),
	}
	// The library initializes its counters when they are registered.
	metrics.NewKubeRegistry().MustRegister(o.names, o.signatures)
	return o
}

// countUnavailable increments the counter of APIServices that became unavailable if the APIService was available in
// its previous version old and is not in the version s. old may be nil.
func (a *Aggregator) countUnavailable(old, s *apiregistrationv1.APIService) {
	if old == nil || !helper.IsAPIServiceConditionTrue(old, apiregistrationv1.Available) || helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available) {
		return
	}
	reason := "UnknownReason"
	if is := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); is != nil {
		reason = is.Reason
	}
	a.unavailableTotal.WithLabelValues(s.Name, reason).Inc()
}

// availability is a collector that reports, at each scrape, which APIServices are unavailable.
type availability struct{ aggregator *Aggregator }

// Describe implements prometheus.Collector. It describes the metric of unavailable APIServices.
func (availability) Describe(ch chan<- *prometheus.Desc) { ch <- unavailableDesc }

// Collect implements prometheus.Collector. It sends, for each APIService, including those that this server serves
// itself, 1 if it is unavailable and 0 if it is available.
func (c availability) Collect(ch chan<- prometheus.Metric) {
	c.aggregator.mu.Lock()
	defer c.aggregator.mu.Unlock()
	for name, e := range c.aggregator.entries {
		value := 1.0
		if helper.IsAPIServiceConditionTrue(e.object, apiregistrationv1.Available) {
			value = 0
		}
		ch <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, value, name)
	}
}
