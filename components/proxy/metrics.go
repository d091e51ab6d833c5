package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/serving/componentmetrics"
)

// metrics are the proxy's metrics, with upstream's names.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	registry                          *prometheus.Registry
	duration, programming             *prometheus.HistogramVec
	full, partial                     *prometheus.HistogramVec
	last, lastQueued, rules           *prometheus.GaugeVec
	written, noLocal                  *prometheus.GaugeVec
	failures, healthz, livez          *prometheus.CounterVec
	partialFailures                   *prometheus.CounterVec
	endpointsPending, servicesPending prometheus.Gauge
	endpointChanges, serviceChanges   prometheus.Counter
	flushing                          *prometheus.HistogramVec
	flushed                           *prometheus.CounterVec
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
		full:             took("sync_full_proxy_rules_duration_seconds", "[ALPHA] SyncProxyRules latency in seconds for full resyncs"),
		partial:          took("sync_partial_proxy_rules_duration_seconds", "[ALPHA] SyncProxyRules latency in seconds for partial resyncs"),
		written:          gauge("sync_proxy_rules_iptables_last", "[ALPHA] Number of iptables rules written by kube-proxy in last sync", "ip_family", "table"),
		noLocal:          gauge("sync_proxy_rules_no_local_endpoints_total", "[ALPHA] Number of services with a Local traffic policy and no endpoints", "traffic_policy", "ip_family"),
		partialFailures:  counter("sync_proxy_rules_iptables_partial_restore_failures_total", "[ALPHA] Cumulative proxy iptables partial restore failures", byFamily...),
		endpointsPending: pending("sync_proxy_rules_endpoint_changes_pending", "[ALPHA] Pending proxy rules Endpoint changes"),
		servicesPending:  pending("sync_proxy_rules_service_changes_pending", "[ALPHA] Pending proxy rules Service changes"),
		registry:         prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "SyncProxyRules latency in seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, byFamily),
		programming: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_network_programming_duration_seconds", Help: "In Cluster Network Programming Latency in seconds",
			Buckets: []float64{0.25, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 105, 150, 195, 240, 285, 300},
		}, byFamily),
		last:       gauge("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced", byFamily...),
		lastQueued: gauge("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued", byFamily...),
		rules:      gauge("sync_proxy_rules_iptables_total", "Total number of iptables rules owned by kube-proxy", "ip_family", "table"),
		failures:   counter("sync_proxy_rules_iptables_restore_failures_total", "Cumulative proxy iptables restore failures", byFamily...),
		healthz:    counter("proxy_healthz_total", "Cumulative proxy healthz HTTP status", "code"),
		flushing: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Help: "[ALPHA] ReconcileConntrackFlowsLatency latency in seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, byFamily),
		flushed:         counter("conntrack_reconciler_deleted_entries_total", "[ALPHA] Cumulative conntrack flows deleted by conntrack reconciler", byFamily...),
		livez:           counter("proxy_livez_total", "Cumulative proxy livez HTTP status", "code"),
		endpointChanges: changes("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes"),
		serviceChanges:  changes("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes"),
	}
	m.registry.MustRegister(m.duration, m.programming, m.last, m.lastQueued, m.rules, m.failures, m.healthz, m.livez, m.endpointChanges, m.serviceChanges, m.flushing, m.flushed,
		m.full, m.partial, m.written, m.noLocal, m.partialFailures, m.endpointsPending, m.servicesPending, componentmetrics.Build(nil),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// queued records the numbers of Services, and of Services with changed endpoints, that wait for the
// next sync.
func (m *metrics) queued(services, endpoints int) {
	m.lastQueued.WithLabelValues(familyName(false)).SetToCurrentTime()
	m.servicesPending.Set(float64(services))
	m.endpointsPending.Set(float64(endpoints))
}

// syncStarted records that no change waits any more, because a sync that includes all of them has
// started.
func (m *metrics) syncStarted() {
	m.servicesPending.Set(0)
	m.endpointsPending.Set(0)
}

// synced records that the rules of an IP family were written. all is true for a full write, false
// for one of the changed chains only. began is when the sync started. triggered are the times of
// the pod changes that caused it.
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

// failed records a failed write of the rules of an IP family. all is true if it was a full write.
func (m *metrics) failed(ipv6, all bool) {
	m.failures.WithLabelValues(familyName(ipv6)).Inc()
	if !all {
		m.partialFailures.WithLabelValues(familyName(ipv6)).Inc()
	}
}

// portsReplaced records that the ports before of a Service were replaced by after. For each traffic policy, it counts the
// ports that are restricted to local endpoints and have endpoints only on other nodes. This node drops their traffic.
func (m *metrics) portsReplaced(ipv6 bool, before, after []*rules.Port) {
	if len(before)+len(after) == 0 {
		return
	}
	internal, external := withoutLocal(after)
	internalBefore, externalBefore := withoutLocal(before)
	m.noLocal.WithLabelValues("internal", familyName(ipv6)).Add(float64(internal - internalBefore))
	m.noLocal.WithLabelValues("external", familyName(ipv6)).Add(float64(external - externalBefore))
}

// withoutLocal returns the number of ports, by traffic policy, that this node has no endpoint for, but other nodes have.
func withoutLocal(ports []*rules.Port) (internal, external int) {
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
	return internal, external
}

// flowsDeleted records the number of deleted UDP flows, and the duration since began.
func (m *metrics) flowsDeleted(ipv6 bool, flows uint, began time.Time) {
	m.flushing.WithLabelValues(familyName(ipv6)).Observe(time.Since(began).Seconds())
	m.flushed.WithLabelValues(familyName(ipv6)).Add(float64(flows))
}

// ruleCounter returns the numbers of rules by table, in total and in the last write.
// packetfilter.Writer implements it.
type ruleCounter interface {
	Counts(packetfilter.Family) (total, last map[packetfilter.Table]int)
}

// rulesWritten records the numbers of rules that exist, and of those that were part of the last
// write, in one IP family.
func (m *metrics) rulesWritten(ipv6 bool, written ruleCounter) {
	total, last := written.Counts(packetfilter.FamilyOf(ipv6))
	for _, table := range []packetfilter.Table{packetfilter.NAT, packetfilter.Filter} {
		m.rules.WithLabelValues(familyName(ipv6), string(table)).Set(float64(total[table]))
		m.written.WithLabelValues(familyName(ipv6), string(table)).Set(float64(last[table]))
	}
}
