package metrics

import "github.com/prometheus/client_golang/prometheus"

// loads contains the numbers of requests that are being handled (in flight) and that wait in queues
// of API Priority and Fairness. Long-running requests are not included.
type loads struct {
	inflight, queued               *prometheus.GaugeVec
	readOnly, mutating             prometheus.Gauge
	queuedReadOnly, queuedMutating prometheus.Gauge
}

// newLoads creates the metrics of requests that are in flight or queued. New registers them.
func newLoads() *loads {
	l := &loads{
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
		queued: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inqueue_requests", Help: "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
	}
	l.readOnly, l.mutating = l.inflight.WithLabelValues("readOnly"), l.inflight.WithLabelValues("mutating")
	l.queuedReadOnly, l.queuedMutating = l.queued.WithLabelValues("readOnly"), l.queued.WithLabelValues("mutating")
	return l
}

// collectors returns all metrics of requests in flight and queued, which New registers.
func (l *loads) collectors() []prometheus.Collector {
	return []prometheus.Collector{l.inflight, l.queued}
}
