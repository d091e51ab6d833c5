package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/client"
	"hyperkube/internal/testing/testnetns"
	"hyperkube/internal/testing/testport"
)

// TestHealthBodies checks that response bodies equal those of upstream's proxy.
func TestHealthBodies(t *testing.T) {
	h := newHealth(Config{}, newMetrics())
	ask := func(handler http.HandlerFunc) (int, string) {
		w := httptest.NewRecorder()
		handler(w, nil)
		return w.Code, w.Body.String()
	}
	type status map[string]struct {
		LastUpdated string
		Healthy     bool
	}
	var body struct {
		LastUpdated, CurrentTime string
		NodeEligible             *bool
		Healthy                  *bool
		Status                   status
	}
	h.recordSuccess(false, true)
	h.updated = h.updated.Add(-unhealthyAfter)
	for path, handler := range map[string]http.HandlerFunc{"healthz": h.serveHealthz, "livez": h.serveLivez} {
		body.NodeEligible = nil
		code, text := ask(handler)
		if err := json.Unmarshal([]byte(text), &body); err != nil || code != http.StatusOK || body.Healthy == nil || !*body.Healthy ||
			(body.NodeEligible != nil) != (path == "healthz") || len(body.Status) != 2 || !body.Status["IPv4"].Healthy || !body.Status["IPv6"].Healthy {
			t.Errorf("%s: %d %s, %v", path, code, text, err)
		}
		if body.LastUpdated <= body.Status["IPv4"].LastUpdated {
			t.Errorf("%s: what is healthy is of now: %s", path, text)
		}
	}
	h.services["ns/web"] = &serviceHealth{local: 2}
	const want = "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
	if _, got := ask(h.serviceHandler("ns/web")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestUnserved checks that an unserved health check port creates one event for the service.
func TestUnserved(t *testing.T) {
	kube := fake.NewClientset()
	p := &Proxy{cfg: Config{NodeName: "n", Clients: &client.Clients{Kube: kube}, Log: slog.New(slog.DiscardHandler)}}
	h := newHealth(p.cfg, newMetrics())
	h.onUnserved = func(service string, port uint16, err error) {
		p.createUnservedEvent(t.Context(), nameOf(service), port, errors.New("taken"))
	}
	other, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := other.Addr().(*net.TCPAddr).Port
	h.serveServices(map[string]*serviceHealth{"ns/web": {port: uint16(port), sockets: wildcardSockets}})
	h.retryWaiting()
	list, err := kube.EventsV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	e := list.Items[0]
	want := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "ns", Name: "web"}
	if e.Reason != "FailedToStartServiceHealthcheck" || e.Type != "Warning" || e.Action != "Listen" || e.ReportingController != "kube-proxy" || e.Regarding != want ||
		e.Note != fmt.Sprintf(`node n failed to start healthcheck "ns/web" on port %d: taken`, port) {
		t.Errorf("%+v", e)
	}
}

// TestHealthPortTaken checks that a health check port is served as soon as the port is free.
func TestHealthPortTaken(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	h := newHealth(Config{Log: log}, newMetrics())
	port, release, err := testport.Claim()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	other, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	h.serveServices(map[string]*serviceHealth{"ns/web": {port: uint16(port), local: 1, sockets: wildcardSockets}})
	if !h.hasWaiting() || len(h.services) > 0 {
		t.Fatalf("%v, waiting %v", h.services, h.waiting)
	}
	h.retryWaiting()
	if !h.hasWaiting() {
		t.Fatal("it is forgotten after the second time")
	}
	other.Close()
	h.retryWaiting()
	if h.hasWaiting() {
		t.Fatal("the port is free and not listened on")
	}
	h.recordSuccess()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	h.serveServices(map[string]*serviceHealth{"ns/web": nil})
	// A service that is deleted while it waits is not served.
	h.waiting["ns/gone"] = &serviceHealth{port: uint16(port), sockets: wildcardSockets}
	h.serveServices(map[string]*serviceHealth{"ns/gone": nil})
	if h.hasWaiting() || len(h.services) > 0 {
		t.Errorf("%v, waiting %v", h.services, h.waiting)
	}
}

// TestHealthSockets checks that health check ports listen on the addresses of node ports.
func TestHealthSockets(t *testing.T) {
	testnetns.Enter(t)
	up(&bench{t: t}, "lo", "192.0.2.1/24", "192.0.2.2/24", "198.51.100.1/24", "fd00::1/64")
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, "[{tcp }]"},
		{[]string{"all"}, "[{tcp }]"},
		{[]string{"192.0.2.0/24"}, "[{tcp 192.0.2.1} {tcp 192.0.2.2} {tcp6 ::}]"},
		{[]string{"fd00::/64"}, "[{tcp4 0.0.0.0} {tcp fd00::1}]"},
		{[]string{"primary"}, "[{tcp 198.51.100.1} {tcp fd00::1}]"},
		{[]string{"localhost"}, "[{tcp 127.0.0.1} {tcp ::1}]"},
		{[]string{"203.0.113.0/24", "fd01::/64"}, "[]"},
	} {
		var cfg Config
		if err := apply(asking(t, "", "--nodeport-addresses="+strings.Join(c.flags, ",")).config, &cfg); err != nil {
			t.Fatal(err)
		}
		p := &Proxy{cfg: cfg}
		p.node.addresses = map[bool]netip.Addr{false: netip.MustParseAddr("198.51.100.1"), true: netip.MustParseAddr("fd00::1")}
		sockets, err := p.healthSockets()
		slices.SortFunc(sockets, func(a, b socket) int { return strings.Compare(fmt.Sprint(a.host), fmt.Sprint(b.host)) })
		if got := fmt.Sprint(sockets); err != nil || got != c.want {
			t.Errorf("%v: %s, %v: want %s", c.flags, got, err, c.want)
		}
	}
	h := newHealth(Config{}, newMetrics())
	want := &serviceHealth{port: 30999, local: 1, sockets: []socket{{"tcp", "192.0.2.1"}}}
	h.serveServices(map[string]*serviceHealth{"ns/web": want})
	h.recordSuccess()
	for ip, served := range map[string]bool{"192.0.2.1": true, "192.0.2.2": false} {
		conn, err := net.Dial("tcp", ip+":30999")
		if (err == nil) != served {
			t.Errorf("%s: %v", ip, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	// If the address of the node changes, the listener moves.
	h.serveServices(map[string]*serviceHealth{"ns/web": {port: 30999, local: 1, sockets: []socket{{"tcp", "192.0.2.2"}}}})
	for ip, served := range map[string]bool{"192.0.2.1": false, "192.0.2.2": true} {
		conn, err := net.Dial("tcp", ip+":30999")
		if (err == nil) != served {
			t.Errorf("%s: %v afterwards", ip, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	h.serveServices(map[string]*serviceHealth{"ns/web": nil})
}
