package dns

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestMetrics checks the metrics that dashboards for CoreDNS read.
func TestMetrics(t *testing.T) {
	server, address := startServer(t, "")
	ask(t, address, "udp", "web.default.svc.cluster.local.", dns.TypeA)
	ask(t, address, "tcp", "none.default.svc.cluster.local.", dns.TypeAAAA)
	ask(t, address, "udp", "example.org.", dns.TypeLOC)

	answer := httptest.NewRecorder()
	promhttp.HandlerFor(server.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := strings.ReplaceAll(answer.Body.String(), address, "HERE")
	for _, want := range []string{
		`coredns_dns_requests_total{family="1",proto="udp",server="dns://HERE",type="A",view="",zone="cluster.local."} 1`,
		`coredns_dns_requests_total{family="1",proto="tcp",server="dns://HERE",type="AAAA",view="",zone="cluster.local."} 1`,
		`coredns_dns_requests_total{family="1",proto="udp",server="dns://HERE",type="other",view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NOERROR",server="dns://HERE",view="",zone="cluster.local."} 1`,
		`coredns_dns_responses_total{plugin="kubernetes",rcode="NXDOMAIN",server="dns://HERE",view="",zone="cluster.local."} 1`,
		`coredns_dns_responses_total{plugin="forward",rcode="SERVFAIL",server="dns://HERE",view="",zone="."} 1`,
		`coredns_dns_request_duration_seconds_count{server="dns://HERE",view="",zone="cluster.local."} 2`,
		`coredns_dns_request_size_bytes_count{proto="tcp",server="dns://HERE",view="",zone="cluster.local."} 1`,
		`coredns_dns_response_size_bytes_count{proto="udp",server="dns://HERE",view="",zone="cluster.local."} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	for _, name := range []string{"coredns_build_info", "go_goroutines", "process_resident_memory_bytes"} {
		if !regexp.MustCompile(`(?m)^` + name + `[{ ]`).MatchString(text) {
			t.Errorf("no %s", name)
		}
	}
}
