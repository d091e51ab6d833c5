package dataplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/gateway/model"
	"hyperkube/internal/testing/testwait"
)

// gatewayTest is a Plane with one port.
type gatewayTest struct {
	*testing.T
	plane    *Plane
	config   *model.Config
	backends map[model.BackendKey]*model.Backend
	listen   map[model.PortID]int32
}

// newGatewayTest returns a Plane without listeners.
func newGatewayTest(t *testing.T, configure func(*Config)) *gatewayTest {
	t.Helper()
	cfg := Config{Host: "127.0.0.1", Metrics: prometheus.NewRegistry(), DrainTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}
	if configure != nil {
		configure(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return &gatewayTest{T: t, plane: p, config: &model.Config{Ports: map[model.PortID]*model.Port{}}, backends: map[model.BackendKey]*model.Backend{}, listen: map[model.PortID]int32{}}
}

// backend returns a backend with endpoints.
func (g *gatewayTest) backend(name string, protocol model.BackendProtocol, endpoints ...string) *model.Backend {
	b := &model.Backend{Key: model.BackendKey{Namespace: "apps", Service: name, Port: 80, Protocol: protocol}}
	g.backends[b.Key] = b
	g.setEndpoints(b, endpoints...)
	return b
}

func (g *gatewayTest) setEndpoints(b *model.Backend, endpoints ...string) {
	var list []model.Endpoint
	for _, e := range endpoints {
		list = append(list, model.Endpoint{Address: strings.TrimPrefix(strings.TrimPrefix(e, "http://"), "https://")})
	}
	g.plane.SetEndpoints(b, list)
}

// serve serves listeners and returns the address of their port.
func (g *gatewayTest) serve(number int32, listeners ...*model.Listener) string {
	g.Helper()
	id := model.PortID{Frontend: "f", Number: number, UDP: listeners[0].Kind == model.UDP}
	g.config = &model.Config{Ports: map[model.PortID]*model.Port{}}
	g.config.Ports[id] = &model.Port{Listeners: listeners}
	if g.listen[id] == 0 {
		g.listen[id] = g.freePort()
	}
	for id, err := range g.plane.Apply(g.config, g.backends, g.listen) {
		g.Fatalf("port %v: %v", id, err)
	}
	return fmt.Sprintf("127.0.0.1:%d", g.listen[id])
}

func (g *gatewayTest) freePort() int32 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.Fatal(err)
	}
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// rule returns a rule for all paths with one backend.
func rule1(b *model.Backend) *model.Rule {
	return &model.Rule{Matches: []model.Match{{PathKind: model.PathPrefix}}, Backends: []model.WeightedBackend{{Backend: b, Weight: 1}}}
}

// route returns a listener with a route.
func listenerOf(rules ...*model.Rule) *model.Listener {
	return &model.Listener{Name: "l", Routes: []model.AttachedRoute{{Hostnames: []string{""}, Route: &model.Route{Name: "HTTPRoute/apps/r", Rules: rules}}}}
}

// echo is a backend that answers with the request.
func echo(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", "yes")
		fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.Method, r.Host, r.URL.RequestURI())
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Set", "X-Add", "X-Remove"} {
			for _, v := range r.Header[name] {
				fmt.Fprintf(w, " %s=%s", name, v)
			}
		}
		fmt.Fprintf(w, " %s", body)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// client returns a client without connections of others, which does not follow redirects.
func client(t *testing.T, transport *http.Transport) *http.Client {
	t.Helper()
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and returns the response with its body.
func (g *gatewayTest) do(c *http.Client, method, url, body string, headers ...string) (*http.Response, string) {
	g.Helper()
	r, err := http.NewRequestWithContext(g.Context(), method, url, strings.NewReader(body))
	if err != nil {
		g.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		g.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		g.Fatal(err)
	}
	return res, string(text)
}

// TestForward checks what a backend receives.
func TestForward(t *testing.T) {
	g := newGatewayTest(t, nil)
	h1, h2c := g.backend("h1", model.BackendHTTP1, echo(t).URL), g.backend("h2c", model.BackendH2C, echo(t).URL)
	c := client(t, &http.Transport{})
	for b, proto := range map[*model.Backend]string{h1: "HTTP/1.1", h2c: "HTTP/2.0"} {
		at := g.serve(80, listenerOf(rule1(b)))
		res, text := g.do(c, "POST", "http://"+at+"/p%2Fq?x=1;y=2", "content", "Host", "a.com", "X-Forwarded-For", "192.0.2.9", "X-Remove", "kept")
		want := proto + " POST a.com /p%2Fq?x=1;y=2 X-Forwarded-For=127.0.0.1 X-Forwarded-Proto=http X-Forwarded-Host=a.com X-Remove=kept content"
		if text != want || res.Header.Get("X-Backend") != "yes" {
			t.Errorf("backend received %q, want %q", text, want)
		}
	}
}

// TestFilters checks redirects, rewrites, header filters and CORS.
func TestFilters(t *testing.T) {
	g := newGatewayTest(t, nil)
	b := g.backend("b", model.BackendHTTP1, echo(t).URL)
	prefix := func(path string, f model.Filters) *model.Rule {
		r := rule1(b)
		r.Matches[0].Path, r.Filters = path, f
		return r
	}
	at := g.serve(80, listenerOf(
		prefix("/redirect", model.Filters{Redirect: &model.Redirect{Scheme: "https", Hostname: "b.com", Code: 301, Path: &model.PathModifier{ReplacePrefix: true, Value: "/new"}}}),
		prefix("/port", model.Filters{Redirect: &model.Redirect{Port: 8443, Code: 302}}),
		prefix("/rewrite", model.Filters{Rewrite: &model.Rewrite{Hostname: "c.com", Path: &model.PathModifier{ReplacePrefix: true, Value: "/to"}}}),
		prefix("/headers", model.Filters{
			RequestHeaders:  &model.HeaderFilter{Set: []model.Header{{Name: "X-Set", Value: "s"}}, Add: []model.Header{{Name: "X-Add", Value: "2"}}, Remove: []string{"X-Remove"}},
			ResponseHeaders: &model.HeaderFilter{Set: []model.Header{{Name: "X-Response", Value: "r"}}, Remove: []string{"X-Backend"}},
		}),
		prefix("/cors", model.Filters{CORS: &model.CORS{Origins: []string{"https://*.example.com"}, Methods: []string{"GET", "PUT"}, Credentials: true, MaxAge: 60}}),
		&model.Rule{Matches: []model.Match{{PathKind: model.PathPrefix, Path: "/invalid"}}, Backends: []model.WeightedBackend{{Weight: 1}}},
	))
	c := client(t, &http.Transport{})
	url := "http://" + at
	if res, _ := g.do(c, "GET", url+"/redirect/x?q=1", "", "Host", "a.com"); res.StatusCode != 301 || res.Header.Get("Location") != "https://b.com/new/x?q=1" {
		t.Errorf("redirect: %d %s", res.StatusCode, res.Header.Get("Location"))
	}
	if res, _ := g.do(c, "GET", url+"/port", "", "Host", "a.com"); res.StatusCode != 302 || res.Header.Get("Location") != "http://a.com:8443/port" {
		t.Errorf("redirect to a port: %d %s", res.StatusCode, res.Header.Get("Location"))
	}
	if _, text := g.do(c, "GET", url+"/rewrite/x", "", "Host", "a.com"); !strings.HasPrefix(text, "HTTP/1.1 GET c.com /to/x ") {
		t.Errorf("rewrite: %s", text)
	}
	res, text := g.do(c, "GET", url+"/headers", "", "X-Set", "old", "X-Add", "1", "X-Remove", "x")
	if !strings.HasSuffix(text, "X-Set=s X-Add=1 X-Add=2 ") || res.Header.Get("X-Response") != "r" || res.Header.Get("X-Backend") != "" {
		t.Errorf("headers: %q %v", text, res.Header)
	}
	res, text = g.do(c, "OPTIONS", url+"/cors", "", "Origin", "https://a.example.com", "Access-Control-Request-Method", "PUT")
	if res.StatusCode != 204 || text != "" || res.Header.Get("Access-Control-Allow-Origin") != "https://a.example.com" || res.Header.Get("Access-Control-Allow-Methods") != "GET, PUT" || res.Header.Get("Access-Control-Max-Age") != "60" {
		t.Errorf("preflight: %d %v", res.StatusCode, res.Header)
	}
	if res, _ := g.do(c, "GET", url+"/cors", "", "Origin", "https://evil.com"); res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("other origin: %d %v", res.StatusCode, res.Header)
	}
	for path, code := range map[string]int{"/invalid": 500, "/none": 404} {
		if res, _ := g.do(c, "GET", url+path, ""); res.StatusCode != code {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, code)
		}
	}
}

// TestWeights checks that backends get requests in proportion to their weights.
func TestWeights(t *testing.T) {
	g := newGatewayTest(t, nil)
	counts := map[string]int{}
	r := rule1(nil)
	r.Backends = nil
	for i, weight := range []int32{70, 30, 0} {
		name := fmt.Sprint(i)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
		t.Cleanup(s.Close)
		r.Backends = append(r.Backends, model.WeightedBackend{Backend: g.backend(name, model.BackendHTTP1, s.URL), Weight: weight})
	}
	at := g.serve(80, listenerOf(r))
	c := client(t, &http.Transport{})
	for range 500 {
		_, text := g.do(c, "GET", "http://"+at+"/", "")
		counts[text]++
	}
	// The probability of a wider deviation is below 1e-9.
	if counts["0"] < 280 || counts["0"] > 420 || counts["2"] != 0 {
		t.Errorf("requests by backend: %v", counts)
	}
}

// TestEndpoints checks that a request moves on to an endpoint that accepts connections, and that an empty list and a backend
// that does not answer in time have the right status codes.
func TestEndpoints(t *testing.T) {
	g := newGatewayTest(t, nil)
	s := echo(t)
	b := g.backend("b", model.BackendHTTP1, s.URL, "127.0.0.1:1")
	c := client(t, &http.Transport{})
	at := g.serve(80, listenerOf(rule1(b)))
	for range 10 {
		if res, _ := g.do(c, "POST", "http://"+at+"/", "content"); res.StatusCode != 200 {
			t.Errorf("with an endpoint that refuses connections: %d", res.StatusCode)
		}
	}
	g.setEndpoints(b)
	if res, _ := g.do(c, "GET", "http://"+at+"/", ""); res.StatusCode != 503 {
		t.Errorf("without endpoints: %d", res.StatusCode)
	}
	g.setEndpoints(b, "127.0.0.1:1")
	if res, _ := g.do(c, "GET", "http://"+at+"/", ""); res.StatusCode != 502 {
		t.Errorf("with an unreachable endpoint: %d", res.StatusCode)
	}
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(release) })
	g.setEndpoints(b, slow.URL)
	for _, timeouts := range []model.Timeouts{{Request: 10 * time.Millisecond}, {Backend: 10 * time.Millisecond}} {
		r := rule1(b)
		r.Timeouts = timeouts
		g.serve(80, listenerOf(r))
		if res, _ := g.do(c, "GET", "http://"+at+"/", ""); res.StatusCode != 504 {
			t.Errorf("with timeouts %+v: %d", timeouts, res.StatusCode)
		}
	}
}

// TestRetry checks that a request is repeated for the status codes of the rule.
func TestRetry(t *testing.T) {
	g := newGatewayTest(t, nil)
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	r := rule1(g.backend("b", model.BackendHTTP1, s.URL))
	r.Retry = &model.Retry{Codes: []int{503}, Attempts: 2}
	at := g.serve(80, listenerOf(r))
	if res, _ := g.do(client(t, &http.Transport{}), "GET", "http://"+at+"/", ""); res.StatusCode != 200 || n.Load() != 3 {
		t.Errorf("status %d after %d attempts", res.StatusCode, n.Load())
	}
}

// TestMirror checks that mirrors receive the same body, and that their failure does not affect the response.
func TestMirror(t *testing.T) {
	g := newGatewayTest(t, nil)
	got := make(chan string, 1)
	m := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(body)
		w.WriteHeader(500)
	}))
	t.Cleanup(m.Close)
	r := rule1(g.backend("b", model.BackendHTTP1, echo(t).URL))
	r.Filters.Mirrors = []model.Mirror{{Backend: g.backend("m", model.BackendHTTP1, m.URL), Numerator: 1, Denominator: 1}}
	at := g.serve(80, listenerOf(r))
	res, text := g.do(client(t, &http.Transport{}), "POST", "http://"+at+"/x", "content")
	if res.StatusCode != 200 || !strings.HasSuffix(text, " content") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if mirrored := <-got; mirrored != "POST /x content" {
		t.Errorf("mirrored %q", mirrored)
	}
}

// TestLimits checks the limit of request bodies, and the access log.
func TestLimits(t *testing.T) {
	var logged bytes.Buffer
	g := newGatewayTest(t, func(c *Config) {
		c.Limits.BodyBytes = 10
		c.AccessLog = &logged
	})
	at := g.serve(80, listenerOf(rule1(g.backend("b", model.BackendHTTP1, echo(t).URL))))
	c := client(t, &http.Transport{})
	if res, _ := g.do(c, "POST", "http://"+at+"/", "0123456789"); res.StatusCode != 200 {
		t.Errorf("body of the maximum size: %d", res.StatusCode)
	}
	if res, _ := g.do(c, "POST", "http://"+at+"/large?secret=1", "0123456789a"); res.StatusCode != 413 {
		t.Errorf("larger body: %d", res.StatusCode)
	}
	c.CloseIdleConnections()
	g.plane.Stop()
	var lines []accessLine
	for decoder := json.NewDecoder(&logged); ; {
		var line accessLine
		if decoder.Decode(&line) != nil {
			break
		}
		lines = append(lines, line)
	}
	if len(lines) != 2 || lines[1].Code != 413 || lines[1].Path != "/large" || lines[1].Route != "HTTPRoute/apps/r" || lines[0].Bytes == 0 || lines[0].Endpoint == "" {
		t.Errorf("access log %+v", lines)
	}
}

// TestUpgrade forwards an upgraded connection, as WebSockets use.
func TestUpgrade(t *testing.T) {
	g := newGatewayTest(t, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, buffered)
	}))
	t.Cleanup(s.Close)
	r := rule1(g.backend("b", model.BackendHTTP1, s.URL))
	r.Timeouts.Backend = time.Minute
	at := g.serve(80, listenerOf(r))
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 101" {
		t.Fatalf("%q, %v", head, err)
	}
	fmt.Fprint(conn, "ping")
	var seen strings.Builder
	buffer := make([]byte, 100)
	for !strings.HasSuffix(seen.String(), "ping") {
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatal(err, seen.String())
		}
		seen.Write(buffer[:n])
	}
}

// TestReplacement sends requests continuously while listeners, endpoints and routes are replaced. None of them fails.
func TestReplacement(t *testing.T) {
	g := newGatewayTest(t, nil)
	servers := []*httptest.Server{echo(t), echo(t)}
	b := g.backend("b", model.BackendHTTP1, servers[0].URL)
	at := g.serve(80, listenerOf(rule1(b)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var sent atomic.Int32
	c := client(t, &http.Transport{})
	go func() {
		for ctx.Err() == nil {
			res, err := c.Post("http://"+at+"/", "text/plain", strings.NewReader("x"))
			if err != nil {
				done <- err
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode != 200 {
				done <- fmt.Errorf("status %d", res.StatusCode)
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	for i := range 50 {
		before := sent.Load()
		g.setEndpoints(b, servers[i%2].URL)
		g.serve(80, listenerOf(rule1(b)))
		testwait.Until(t, "a request", func() bool { return sent.Load() > before || len(done) > 0 })
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// trusting returns a TLS configuration that trusts the certificate of a test server.
func trusting(s *httptest.Server, name string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{RootCAs: pool, ServerName: name}
}

// TestTLS checks TLS with HTTP/2, listeners by server name, and misdirected requests.
func TestTLS(t *testing.T) {
	g := newGatewayTest(t, nil)
	// The certificate of a test server is valid for example.com and *.example.com.
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	t.Cleanup(s.Close)
	listener := func(hostname string, b *model.Backend) *model.Listener {
		l := listenerOf(rule1(b))
		l.Kind, l.Hostname, l.TLS = model.HTTPS, hostname, &model.ServerTLS{Certificates: []*tls.Certificate{&s.TLS.Certificates[0]}}
		return l
	}
	b := g.backend("b", model.BackendHTTP1, echo(t).URL)
	at := g.serve(443, listener("example.com", b), listener("*.example.com", b))
	transport := &http.Transport{TLSClientConfig: trusting(s, "example.com"), ForceAttemptHTTP2: true}
	c := client(t, transport)
	res, text := g.do(c, "GET", "https://"+at+"/", "", "Host", "example.com")
	if res.ProtoMajor != 2 || res.StatusCode != 200 || !strings.Contains(text, "X-Forwarded-Proto=https") {
		t.Errorf("%s %d %s", res.Proto, res.StatusCode, text)
	}
	if res, _ := g.do(c, "GET", "https://"+at+"/", "", "Host", "a.example.com"); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("request for another listener: %d", res.StatusCode)
	}
	// A name without a listener fails in the handshake.
	if conn, err := tls.Dial("tcp", at, trusting(s, "other.org")); err == nil {
		conn.Close()
		t.Error("a connection for a name without a listener was accepted")
	} else if !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a connection for a name without a listener: %v", err)
	}
	// A new certificate does not affect connections.
	g.serve(443, listener("example.com", b), listener("*.example.com", b))
	if res, _ := g.do(c, "GET", "https://"+at+"/", "", "Host", "example.com"); res.StatusCode != 200 {
		t.Errorf("after a change: %d", res.StatusCode)
	}
}

// TestPassthrough forwards TLS connections by their server name, on the port of an HTTPS listener.
func TestPassthrough(t *testing.T) {
	g := newGatewayTest(t, nil)
	behind := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "behind ", r.TLS.ServerName) }))
	t.Cleanup(behind.Close)
	https := listenerOf(rule1(g.backend("b", model.BackendHTTP1, echo(t).URL)))
	https.Kind, https.Hostname, https.TLS = model.HTTPS, "example.com", &model.ServerTLS{Certificates: []*tls.Certificate{&behind.TLS.Certificates[0]}}
	forward := func(b *model.Backend) []model.Forward {
		return []model.Forward{{Name: "TLSRoute/apps/r", Hostnames: []string{"*.example.com"}, Backends: []model.WeightedBackend{{Backend: b, Weight: 1}}}}
	}
	pass := &model.Listener{Name: "pass", Kind: model.TLSPassthrough, Hostname: "*.example.com", Forwards: forward(g.backend("tls", model.BackendHTTP1, behind.URL))}
	at := g.serve(443, https, pass)
	get := func(name string) string {
		c := client(t, &http.Transport{TLSClientConfig: trusting(behind, name), DisableKeepAlives: true})
		_, text := g.do(c, "GET", "https://"+at+"/", "", "Host", name)
		return text
	}
	if text := get("a.example.com"); text != "behind a.example.com" {
		t.Errorf("passthrough: %q", text)
	}
	if text := get("example.com"); !strings.HasPrefix(text, "HTTP/1.1 GET example.com") {
		t.Errorf("HTTPS: %q", text)
	}
	terminate := &model.Listener{Name: "t", Kind: model.TLSTerminate, Hostname: "*.example.com", TLS: https.TLS, Forwards: forward(g.backend("plain", model.BackendHTTP1, echo(t).URL))}
	g.serve(443, https, terminate)
	if text := get("a.example.com"); !strings.HasPrefix(text, "HTTP/1.1 GET a.example.com") || strings.Contains(text, "X-Forwarded") {
		t.Errorf("terminated: %q", text)
	}
}

// TestTCPAndUDP forwards a connection, with its half-closed end, and datagrams.
func TestTCPAndUDP(t *testing.T) {
	g := newGatewayTest(t, nil)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close() })
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			text, _ := io.ReadAll(conn)
			fmt.Fprintf(conn, "got %s", text)
			conn.Close()
		}
	}()
	forward := func(b *model.Backend) []model.Forward {
		return []model.Forward{{Name: "r", Hostnames: []string{""}, Backends: []model.WeightedBackend{{Backend: b, Weight: 1}}}}
	}
	at := g.serve(5000, &model.Listener{Kind: model.TCP, Forwards: forward(g.backend("tcp", model.BackendHTTP1, tcp.Addr().String()))})
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "data")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "got data" {
		t.Errorf("TCP: %q, %v", text, err)
	}

	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			n, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(append([]byte("got "), buffer[:n]...), from)
		}
	}()
	at = g.serve(5000, &model.Listener{Kind: model.UDP, Forwards: forward(g.backend("udp", model.BackendHTTP1, udp.LocalAddr().String()))})
	client, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	buffer := make([]byte, 100)
	for range 2 {
		fmt.Fprint(client, "datagram")
		if n, err := client.Read(buffer); err != nil || string(buffer[:n]) != "got datagram" {
			t.Errorf("UDP: %q, %v", buffer[:n], err)
		}
	}
}

// TestProxyProtocol checks that the address of the header is forwarded, and that connections without a header are closed.
func TestProxyProtocol(t *testing.T) {
	g := newGatewayTest(t, func(c *Config) { c.ProxyProtocol = true })
	at := g.serve(80, listenerOf(rule1(g.backend("b", model.BackendHTTP1, echo(t).URL))))
	v2 := proxySignature + "\x21\x11\x00\x0c\xc0\x00\x02\x07\x0a\x00\x00\x01\x04\xd2\x00\x50"
	for header, want := range map[string]string{
		"PROXY TCP4 192.0.2.7 10.0.0.1 1234 80\r\n":      "X-Forwarded-For=192.0.2.7",
		"PROXY TCP6 2001:db8::7 2001:db8::1 1234 80\r\n": "X-Forwarded-For=2001:db8::7",
		"PROXY UNKNOWN\r\n":                              "X-Forwarded-For=127.0.0.1",
		v2:                                               "X-Forwarded-For=192.0.2.7",
		"":                                               "",
	} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%sGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", header)
		text, _ := io.ReadAll(conn)
		conn.Close()
		if want == "" && len(text) > 0 || !strings.Contains(string(text), want) {
			t.Errorf("header %q: %q", header, text)
		}
	}
}
