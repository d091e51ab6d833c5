package dns

import (
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"hyperkube/internal/version"
)

// metrics are told with the names and labels that CoreDNS has for them, for
// which dashboards and alerts ask. The zone is that of who knew the answer: the
// cluster's, or "." for the name servers of the node. There are no views here.
type metrics struct {
	registry           *prometheus.Registry
	asked              *prometheus.CounterVec
	answered           *prometheus.CounterVec
	took               *prometheus.HistogramVec
	askSize, replySize *prometheus.HistogramVec
	server             string
}

func newMetrics(address string) *metrics {
	sizes := []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_dns_requests_total", Help: "Questions by who knew the answer, protocol, address family and type.",
		}, []string{"server", "zone", "view", "proto", "family", "type"}),
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_dns_responses_total", Help: "Answers by response code and by who knew them.",
		}, []string{"server", "zone", "view", "rcode", "plugin"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_request_duration_seconds", Help: "Time until a question was answered.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}, []string{"server", "zone", "view"}),
		askSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_request_size_bytes", Help: "Size of questions.", Buckets: sizes,
		}, []string{"server", "zone", "view", "proto"}),
		replySize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_dns_response_size_bytes", Help: "Size of answers.", Buckets: sizes,
		}, []string{"server", "zone", "view", "proto"}),
		server: "dns://" + address,
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "coredns_build_info", Help: "Which build this is, always 1.",
	}, []string{"version", "revision", "goversion"})
	build.WithLabelValues(version.Get().GitVersion, version.Get().GitCommit, runtime.Version()).Set(1)
	m.registry.MustRegister(m.asked, m.answered, m.took, m.askSize, m.replySize, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// count counts a question and its answer, which zone knew; empty: nobody, for
// it is no question that is answered here.
func (m *metrics) count(client net.Addr, query, answer *dns.Msg, zone string, tcp bool, took time.Duration) {
	proto, family := "udp", "1"
	if tcp {
		proto = "tcp"
	}
	if at, err := netip.ParseAddrPort(client.String()); err == nil && !at.Addr().Unmap().Is4() {
		family = "2"
	}
	// Whoever asks chooses the type: what is not usual has no series of its own.
	kind := "other"
	if len(query.Question) == 1 {
		if name, ok := usual[query.Question[0].Qtype]; ok {
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
	m.asked.WithLabelValues(m.server, zone, "", proto, family, kind).Inc()
	m.answered.WithLabelValues(m.server, zone, "", dns.RcodeToString[answer.Rcode], plugin).Inc()
	m.took.WithLabelValues(m.server, zone, "").Observe(took.Seconds())
	m.askSize.WithLabelValues(m.server, zone, "", proto).Observe(float64(query.Len()))
	m.replySize.WithLabelValues(m.server, zone, "", proto).Observe(float64(answer.Len()))
}

// usual are the types of questions that are counted by their names.
var usual = map[uint16]string{
	dns.TypeA: "A", dns.TypeAAAA: "AAAA", dns.TypeCNAME: "CNAME", dns.TypeDNSKEY: "DNSKEY", dns.TypeDS: "DS", dns.TypeHTTPS: "HTTPS",
	dns.TypeMX: "MX", dns.TypeNS: "NS", dns.TypePTR: "PTR", dns.TypeRRSIG: "RRSIG", dns.TypeSOA: "SOA", dns.TypeSRV: "SRV", dns.TypeSVCB: "SVCB", dns.TypeTXT: "TXT",
}
