package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/testing/testport"
)

func objects() []runtime.Object {
	slice := func(service string, endpoints []discoveryv1.Endpoint, ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints:  endpoints, Ports: ports,
		}
	}
	port := discoveryv1.EndpointPort{Name: new("peer"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(7000))}
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00::7"},
				Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "early"},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "alias"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"},
		},
		slice("db", []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.5"}, Hostname: new("db-0")},
			{Addresses: []string{"10.244.0.6"}},
			{Addresses: []string{"10.244.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		}, port),
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "starts"},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
		},
		slice("starts", []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}, port),
		slice("web", []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.4"}, Hostname: new("web-0")}}, port),
		slice("early", []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.8"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}),
	}
}

// start runs a server and returns its address.
func start(t *testing.T, resolvConf string) string {
	t.Helper()
	_, address := startServer(t, resolvConf)
	return address
}

// startServer runs a server and returns it with its address.
func startServer(t *testing.T, resolvConf string) (server *Server, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte(resolvConf), 0o600); err != nil {
		t.Fatal(err)
	}
	address = testport.Address(t)
	server, err := New(Config{
		Address: address, Domain: "cluster.local", TTL: 5, ResolvConf: file,
		Informers: informers.NewSharedInformerFactory(fake.NewClientset(objects()...), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-server.Ready():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return server, address
}

func ask(t *testing.T, address, network, name string, qtype uint16) *dns.Msg {
	t.Helper()
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	answer, _, err := (&dns.Client{Net: network, Timeout: time.Minute}).Exchange(query, address)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return answer
}

func TestSpecification(t *testing.T) {
	address := start(t, "")
	for _, c := range []struct {
		name  string
		qtype uint16
		rcode int
		want  string // answers without name, TTL and class, sorted
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, 0, "A 10.96.0.7"},
		{"WEB.default.svc.Cluster.local.", dns.TypeA, 0, "A 10.96.0.7"},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, 0, "AAAA fd00::7"},
		{"web.default.svc.cluster.local.", dns.TypeTXT, 0, ""},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, 0, "SRV 0 100 80 web.default.svc.cluster.local."},
		{"_https._tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"none.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"default.svc.cluster.local.", dns.TypeA, 0, ""},
		{"other.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"svc.cluster.local.", dns.TypeA, 0, ""},
		{"web.other.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"db.default.svc.cluster.local.", dns.TypeA, 0, "A 10.244.0.5, A 10.244.0.6"},
		{"db-0.db.default.svc.cluster.local.", dns.TypeA, 0, "A 10.244.0.5"},
		{"10-244-0-6.db.default.svc.cluster.local.", dns.TypeA, 0, "A 10.244.0.6"},
		{"db-7.db.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"_peer._tcp.db.default.svc.cluster.local.", dns.TypeSRV, 0,
			"SRV 0 100 7000 10-244-0-6.db.default.svc.cluster.local., SRV 0 100 7000 db-0.db.default.svc.cluster.local."},
		{"_peer._udp.db.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"_other._tcp.db.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"cluster.local.", dns.TypeNS, 0, "NS ns.dns.cluster.local."},
		{"cluster.local.", dns.TypeA, 0, ""},
		{"early.default.svc.cluster.local.", dns.TypeA, 0, "A 10.244.0.8"},
		{"alias.default.svc.cluster.local.", dns.TypeA, 0, "A 10.96.0.7, CNAME web.default.svc.cluster.local."},
		{"10-244-0-77.default.pod.cluster.local.", dns.TypeA, 0, "A 10.244.0.77"},
		{"x.default.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"starts.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"db.default.svc.cluster.local.", dns.TypeAAAA, 0, ""},
		{"web-0.web.default.svc.cluster.local.", dns.TypeA, 0, "A 10.244.0.4"},
		{"10-244-0-4.web.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"4.0.244.10.in-addr.arpa.", dns.TypePTR, 0, "PTR web-0.web.default.svc.cluster.local."},
		{"9.0.244.10.in-addr.arpa.", dns.TypePTR, dns.RcodeServerFailure, ""},
		{"8.0.244.10.in-addr.arpa.", dns.TypePTR, 0, "PTR 10-244-0-8.early.default.svc.cluster.local."},
		{"dns-version.cluster.local.", dns.TypeTXT, 0, `TXT "1.1.0"`},
		{"7.0.96.10.in-addr.arpa.", dns.TypePTR, 0, "PTR web.default.svc.cluster.local."},
		{"5.0.244.10.in-addr.arpa.", dns.TypePTR, 0, "PTR db-0.db.default.svc.cluster.local."},
		{"7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, 0, "PTR web.default.svc.cluster.local."},
		{"nowhere.example.", dns.TypeA, dns.RcodeServerFailure, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			answer := ask(t, address, network, c.name, c.qtype)
			if answer.Rcode != c.rcode {
				t.Errorf("%s %s: %s, want %s", c.name, dns.TypeToString[c.qtype], dns.RcodeToString[answer.Rcode], dns.RcodeToString[c.rcode])
			}
			if got := brief(answer.Answer); got != c.want {
				t.Errorf("%s %s: %q, want %q", c.name, dns.TypeToString[c.qtype], got, c.want)
			}
		}
	}
}

func brief(rrs []dns.RR) string {
	var out []string
	for _, rr := range rrs {
		fields := strings.Fields(rr.String())
		out = append(out, strings.Join(fields[3:], " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestLameduck checks that the server keeps answering during shutdown but is not ready.
func TestLameduck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	address := testport.Address(t)
	server, err := New(Config{
		Address: address, Domain: "cluster.local", TTL: 5, ResolvConf: file, Lameduck: 5 * time.Second,
		Informers: informers.NewSharedInformerFactory(fake.NewClientset(objects()...), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	waits, over := make(chan time.Duration, 1), make(chan time.Time)
	server.after = func(d time.Duration) <-chan time.Time {
		waits <- d
		return over
	}
	ready := func() int {
		answer := httptest.NewRecorder()
		server.health().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/ready", nil))
		return answer.Code
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	select {
	case <-server.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	if code := ready(); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	cancel()
	if d := <-waits; d != 5*time.Second {
		t.Errorf("it waits for %s", d)
	}
	if code := ready(); code != http.StatusServiceUnavailable {
		t.Errorf("ready after the end: %d", code)
	}
	if answer := ask(t, address, "udp", "web.default.svc.cluster.local.", dns.TypeA); brief(answer.Answer) != "A 10.96.0.7" {
		t.Errorf("an answer after the end: %s", answer)
	}
	close(over)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestForwards(t *testing.T) {
	upstream, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: upstream, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		rr, _ := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.1")
		m.Answer = []dns.RR{rr}
		_ = w.WriteMsg(m)
	})}
	go server.ActivateAndServe()
	defer server.Shutdown()
	f := &forwarder{upstreams: parseServers(t, upstream.LocalAddr().String()), timeout: time.Minute}
	query := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	answer, err := f.exchange(context.Background(), query, false)
	if err != nil || brief(answer.Answer) != "A 192.0.2.1" {
		t.Errorf("%v, %v", answer, err)
	}
}

// TestBusy checks that the number of queries waiting for unreachable name servers is limited.
func TestBusy(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	f := &forwarder{upstreams: parseServers(t, silent.LocalAddr().String()), timeout: time.Minute, maxInFlight: 1}
	query := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = f.exchange(t.Context(), query, false) }()
	// The first query is in flight once its packet arrives here.
	question := make([]byte, 512)
	size, from, err := silent.ReadFrom(question)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.exchange(t.Context(), query.Copy(), false); !errors.Is(err, errBusy) || rcodeOf(err) != dns.RcodeRefused {
		t.Error(err)
	}
	question[2] |= 0x80 // an empty answer
	if _, err := silent.WriteTo(question[:size], from); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// aliases is a source of ExternalName services.
type aliases map[string]string

func (a aliases) Service(namespace, name string) *corev1.Service {
	if a[name] == "" {
		return nil
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: a[name]},
	}
}
func (aliases) Slices(_, _ string) []*discoveryv1.EndpointSlice { return nil }
func (aliases) NamespaceExists(string) bool                     { return true }
func (aliases) ServicesByIP(string) []*corev1.Service           { return nil }
func (aliases) SlicesByIP(string) []*discoveryv1.EndpointSlice  { return nil }

// TestAliasesOfAliases checks that chains of aliases are followed and loops are detected.
func TestAliasesOfAliases(t *testing.T) {
	source := aliases{"a": "b.n.svc.cluster.local", "b": "c.n.svc.cluster.local", "c": "1-2-3-4.n.pod.cluster.local", "round": "round.n.svc.cluster.local"}
	s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}, zone: &zone{domain: "cluster.local.", ttl: 5, source: source}, forward: &forwarder{}}
	for name, want := range map[string]int{"a": 4, "round": 1 + maxAliases} {
		query := new(dns.Msg).SetQuestion(name+".n.svc.cluster.local.", dns.TypeA)
		m, _ := s.answer(t.Context(), query, false)
		if len(m.Answer) != want {
			t.Errorf("%s: %d records: %s", name, len(m.Answer), m)
		}
	}
}

func TestUpstreamsThatLeadBackAreLeftOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "nameserver 127.0.0.53\nnameserver 10.96.0.10\nnameserver 192.0.2.53\nnameserver ::1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := newForwarder(file, mustAddrs("10.96.0.10"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.upstreams) != 1 || f.upstreams[0].String() != "192.0.2.53:53" {
		t.Errorf("upstreams %v", f.upstreams)
	}
}

func FuzzNames(f *testing.F) {
	f.Add("web.default.svc.cluster.local.")
	f.Add("5.0.244.10.in-addr.arpa.")
	z := &zone{domain: "cluster.local.", source: nothing{}}
	f.Fuzz(func(t *testing.T, name string) {
		if _, ok := dns.IsDomainName(name); !ok || !dns.IsFqdn(name) {
			return
		}
		if z.covers(name) {
			z.resolve(name, dns.TypeA)
		}
		z.reverse(name, dns.TypePTR)
	})
}

type nothing struct{}

func (nothing) Service(_, _ string) *corev1.Service             { return nil }
func (nothing) Slices(_, _ string) []*discoveryv1.EndpointSlice { return nil }
func (nothing) NamespaceExists(string) bool                     { return true }
func (nothing) ServicesByIP(string) []*corev1.Service           { return nil }
func (nothing) SlicesByIP(string) []*discoveryv1.EndpointSlice  { return nil }

func mustAddrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}
