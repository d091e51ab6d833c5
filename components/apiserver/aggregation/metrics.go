package aggregation

import (
	"github.com/prometheus/client_golang/prometheus"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

// Collectors are the metrics of the APIServices.
func (a *Aggregator) Collectors() []prometheus.Collector {
	return []prometheus.Collector{availability{a}, a.lost}
}

func newLost() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})
}

// note counts an APIService that has become unavailable.
func (a *Aggregator) note(old, s *apiregistrationv1.APIService) {
	if old == nil || !helper.IsAPIServiceConditionTrue(old, apiregistrationv1.Available) || helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available) {
		return
	}
	reason := "UnknownReason"
	if is := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); is != nil {
		reason = is.Reason
	}
	a.lost.WithLabelValues(s.Name, reason).Inc()
}

// availability tells of all APIServices when somebody looks.
type availability struct{ of *Aggregator }

// Describe is prometheus.Collector's.
func (availability) Describe(ch chan<- *prometheus.Desc) { ch <- unavailableDesc }

// Collect is prometheus.Collector's.
func (c availability) Collect(ch chan<- prometheus.Metric) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for name, e := range c.of.entries {
		value := 1.0
		if helper.IsAPIServiceConditionTrue(e.object, apiregistrationv1.Available) {
			value = 0
		}
		ch <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, value, name)
	}
}
