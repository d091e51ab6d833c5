package dns

import (
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"hyperkube/internal/base/version"
)

// metrics are the Prometheus metrics of a Server. They have the names and labels of CoreDNS, so
// that existing dashboards and alerts work. The zone label is the zone that answered: the cluster
// domain, or "." for upstream name servers. The view label is always empty.
type metrics struct {
	registry                  *prometheus.Registry
	requests                  *prometheus.CounterVec
	responses                 *prometheus.CounterVec
	duration                  *prometheus.HistogramVec
	requestSize, responseSize *prometheus.HistogramVec
	server                    string
}

func newMetrics(address string) *metrics {
	sizes := []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_dns_requests_total", Help: "Counter of DNS requests made per zone, protocol and family.",
		}, []string{"server", "zone", "view", "proto", "family", "type"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_dns_responses_total", Help: "Counter of response status codes.",
		}, []string{"server", "zone", "view", "rcode", "plugin"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_request_duration_seconds", Help: "Histogram of the time (in seconds) each request took per zone.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}, []string{"server", "zone", "view"}),
		requestSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_request_size_bytes", Help: "Size of requests in bytes.", Buckets: sizes,
		}, []string{"server", "zone", "view", "proto"}),
		responseSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_response_size_bytes", Help: "Size of responses in bytes.", Buckets: sizes,
		}, []string{"server", "zone", "view", "proto"}),
		server: "dns://" + address,
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "coredns_build_info", Help: "A metric with a constant '1' value labeled by version, revision, and goversion.",
	}, []string{"version", "revision", "goversion"})
	build.WithLabelValues(version.Get().GitVersion, version.Get().GitCommit, runtime.Version()).Set(1)
	m.registry.MustRegister(m.requests, m.responses, m.duration, m.requestSize, m.responseSize, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// count records a query of the client and its answer in the metrics. zone is the zone that
// answered, or empty if the server rejects such queries. took is the time until the answer was
// ready.
func (m *metrics) count(client net.Addr, query, answer *dns.Msg, zone string, tcp bool, took time.Duration) {
	proto, family := "udp", "1"
	if tcp {
		proto = "tcp"
	}
	if at, err := netip.ParseAddrPort(client.String()); err == nil && !at.Addr().Unmap().Is4() {
		family = "2"
	}
	// Clients choose the query type, so unusual types share one label value.
	kind := "other"
	if len(query.Question) == 1 {
		if name, ok := countedTypes[query.Question[0].Qtype]; ok {
			kind = name
		}
	}
	plugin := "kubernetes"
	switch zone {
	case ".":
		plugin = "forward"
	case "":
		zone, plugin = "dropped", ""
	}
	m.requests.WithLabelValues(m.server, zone, "", proto, family, kind).Inc()
	m.responses.WithLabelValues(m.server, zone, "", dns.RcodeToString[answer.Rcode], plugin).Inc()
	m.duration.WithLabelValues(m.server, zone, "").Observe(took.Seconds())
	m.requestSize.WithLabelValues(m.server, zone, "", proto).Observe(float64(query.Len()))
	m.responseSize.WithLabelValues(m.server, zone, "", proto).Observe(float64(answer.Len()))
}

// countedTypes maps the query types that are counted separately to their names.
var countedTypes = map[uint16]string{
	dns.TypeA: "A", dns.TypeAAAA: "AAAA", dns.TypeCNAME: "CNAME", dns.TypeDNSKEY: "DNSKEY", dns.TypeDS: "DS", dns.TypeHTTPS: "HTTPS",
	dns.TypeMX: "MX", dns.TypeNS: "NS", dns.TypePTR: "PTR", dns.TypeRRSIG: "RRSIG", dns.TypeSOA: "SOA", dns.TypeSRV: "SRV", dns.TypeSVCB: "SVCB", dns.TypeTXT: "TXT",
}
