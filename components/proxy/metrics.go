package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/measure"
)

// metrics have upstream's names.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	registry                        *prometheus.Registry
	duration, programming           *prometheus.HistogramVec
	full, partial                   *prometheus.HistogramVec
	last, lastQueued, rules         *prometheus.GaugeVec
	written, noLocal                *prometheus.GaugeVec
	failures, healthz, livez        *prometheus.CounterVec
	partialFailures                 *prometheus.CounterVec
	endpointsPending, servicesAhead prometheus.Gauge
	endpointChanges, serviceChanges prometheus.Counter
	flushing                        *prometheus.HistogramVec
	flushed                         *prometheus.CounterVec
}

func newMetrics() *metrics {
	byFamily := []string{"ip_family"}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	}
	changes := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help})
	}
	pending := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help})
	}
	took := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubeproxy_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, byFamily)
	}
	m := &metrics{
		full:             took("sync_full_proxy_rules_duration_seconds", "[ALPHA] How long writing all rules anew took."),
		partial:          took("sync_partial_proxy_rules_duration_seconds", "[ALPHA] How long writing the rules that have changed took."),
		written:          gauge("sync_proxy_rules_iptables_last", "[ALPHA] Rules by table that were written the last time.", "ip_family", "table"),
		noLocal:          gauge("sync_proxy_rules_no_local_endpoints_total", "[ALPHA] Ports of services whose traffic is to stay on this node, which has no endpoint of them.", "traffic_policy", "ip_family"),
		partialFailures:  counter("sync_proxy_rules_iptables_partial_restore_failures_total", "[ALPHA] How often writing what has changed failed.", byFamily...),
		endpointsPending: pending("sync_proxy_rules_endpoint_changes_pending", "[ALPHA] Services whose endpoints have changed and whose rules are not written yet."),
		servicesAhead:    pending("sync_proxy_rules_service_changes_pending", "[ALPHA] Services that have changed and whose rules are not written yet."),
		registry:         prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "How long writing the rules took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, byFamily),
		programming: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_network_programming_duration_seconds", Help: "From the change of a pod or service to the rules.",
			Buckets: []float64{0.25, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 105, 150, 195, 240, 285, 300},
		}, byFamily),
		last:       gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were written last.", byFamily...),
		lastQueued: gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When something changed last.", byFamily...),
		rules:      gauge("sync_proxy_rules_iptables_total", "Rules by table.", "ip_family", "table"),
		failures:   counter("sync_proxy_rules_iptables_restore_failures_total", "How often writing the rules failed.", byFamily...),
		healthz:    counter("proxy_healthz_total", "Answers of /healthz.", "code"),
		flushing: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Help: "[ALPHA] How long it took to end flows that lead nowhere.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, byFamily),
		flushed:         counter("conntrack_reconciler_deleted_entries_total", "[ALPHA] Flows that were ended because they led nowhere.", byFamily...),
		livez:           counter("proxy_livez_total", "Answers of /livez.", "code"),
		endpointChanges: changes("sync_proxy_rules_endpoint_changes_total", "Changes of endpoints."),
		serviceChanges:  changes("sync_proxy_rules_service_changes_total", "Changes of services."),
	}
	m.registry.MustRegister(m.duration, m.programming, m.last, m.lastQueued, m.rules, m.failures, m.healthz, m.livez, m.endpointChanges, m.serviceChanges, m.flushing, m.flushed,
		m.full, m.partial, m.written, m.noLocal, m.partialFailures, m.endpointsPending, m.servicesAhead, measure.Build(nil),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// queued takes note that there is something to write: for that many services that
// have changed, and for those whose endpoints have.
func (m *metrics) queued(services, endpoints int) {
	m.lastQueued.WithLabelValues(familyName(false)).SetToCurrentTime()
	m.servicesAhead.Set(float64(services))
	m.endpointsPending.Set(float64(endpoints))
}

// begun takes note that all that is known to have changed is being written.
func (m *metrics) begun() {
	m.servicesAhead.Set(0)
	m.endpointsPending.Set(0)
}

// synced takes note that what began then is written for a family, all of it or what
// has changed, and what it was for.
func (m *metrics) synced(ipv6, all bool, began time.Time, triggered []time.Time) {
	family := familyName(ipv6)
	took := time.Since(began).Seconds()
	m.duration.WithLabelValues(family).Observe(took)
	if all {
		m.full.WithLabelValues(family).Observe(took)
	} else {
		m.partial.WithLabelValues(family).Observe(took)
	}
	m.last.WithLabelValues(family).SetToCurrentTime()
	for _, at := range triggered {
		m.programming.WithLabelValues(family).Observe(time.Since(at).Seconds())
	}
}

// failed takes note that writing the rules of a family failed.
func (m *metrics) failed(ipv6, all bool) {
	m.failures.WithLabelValues(familyName(ipv6)).Inc()
	if !all {
		m.partialFailures.WithLabelValues(familyName(ipv6)).Inc()
	}
}

// served takes note of the ports that there are, some of which have no endpoint
// where their traffic is to stay.
func (m *metrics) served(ipv6 bool, ports []*rules.Port) {
	internal, external := 0, 0
	for _, p := range ports {
		if !p.HasAny || len(p.LocalEndpoints) > 0 {
			continue
		}
		if p.LocalInternal {
			internal++
		}
		if p.LocalExternal {
			external++
		}
	}
	m.noLocal.WithLabelValues("internal", familyName(ipv6)).Set(float64(internal))
	m.noLocal.WithLabelValues("external", familyName(ipv6)).Set(float64(external))
}

// ended takes note that so many flows were ended since then.
func (m *metrics) ended(ipv6 bool, flows uint, began time.Time) {
	m.flushing.WithLabelValues(familyName(ipv6)).Observe(time.Since(began).Seconds())
	m.flushed.WithLabelValues(familyName(ipv6)).Add(float64(flows))
}

// wrote takes note of how many rules there are, and how many were written now.
func (m *metrics) wrote(ipv6 bool, set rules.Set, now map[string]int) {
	for name, table := range map[string]rules.Table{"nat": set.NAT, "filter": set.Filter} {
		n := 0
		for _, lines := range table {
			n += len(lines)
		}
		m.rules.WithLabelValues(familyName(ipv6), name).Set(float64(n))
		m.written.WithLabelValues(familyName(ipv6), name).Set(float64(now[name]))
	}
}
