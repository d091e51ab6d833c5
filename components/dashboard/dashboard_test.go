package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"

	"hyperkube/components/dashboard/stream"
)

// goodToken is the bearer token that the API server of the tests accepts.
const goodToken = "good-token"

// apiServer starts an API server that accepts goodToken, and responds with what it has received.
func apiServer(t *testing.T) *httptest.Server {
	t.Helper()
	echo := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "from=upstream")
		w.Header().Set("Content-Security-Policy", "default-src *")
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "path": r.URL.String(), "header": r.Header, "body": string(body)})
	})
	mux.HandleFunc("/api/v1/namespaces/default/pods/p/exec", func(w http.ResponseWriter, r *http.Request) {
		conn, err := echo.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			kind, data, err := conn.ReadMessage()
			if err != nil {
				return
			}
			_ = conn.WriteMessage(kind, append([]byte("echo "), data...))
		}
	})
	mux.HandleFunc("/api/v1/namespaces/default/pods/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"broken","namespace":"default"},"spec":{"nodeName":"n"},"status":{"phase":"Pending",`+
			`"containerStatuses":[{"name":"c","image":"i","state":{"waiting":{"reason":"ErrImageNeverPull"}}}]}}`)
	})
	mux.HandleFunc("/api/v1/namespaces/default/pods/none", status(http.StatusNotFound, "NotFound"))
	mux.HandleFunc("/api/v1/namespaces/default/pods/secret", status(http.StatusForbidden, "Forbidden"))
	mux.HandleFunc("/api/v1/nodes/n", status(http.StatusForbidden, "Forbidden"))
	mux.HandleFunc("/api/v1/namespaces/default/events", status(http.StatusForbidden, "Forbidden"))
	mux.HandleFunc("/apis/certificates.k8s.io/v1/certificatesigningrequests", status(http.StatusForbidden, "Forbidden"))
	mux.HandleFunc("/api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"uid":"u","name":"p"}}]}`)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+goodToken {
			http.Error(w, `{"kind":"Status","code":401,"message":"Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// status returns a handler that responds with a Status of the API server.
func status(code int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"refused"}`, reason, code)
	}
}

// page is a page of a dashboard that runs in a test.
type page struct {
	*testing.T
	server  *Server
	address string // HOST:PORT
	client  *http.Client
	cookie  *http.Cookie
	header  string
}

// start runs a dashboard until the test ends.
func start(t *testing.T, login bool) *page {
	t.Helper()
	return startWith(t, func(cfg *Config) {
		if cfg.Login = login; !login {
			cfg.REST.BearerToken = goodToken
		}
	})
}

// startWith runs a dashboard, whose configuration change completes, until the test ends.
func startWith(t *testing.T, change func(*Config)) *page {
	t.Helper()
	api := apiServer(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Listener: listener, REST: &rest.Config{Host: api.URL}, Context: "test"}
	change(&cfg)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	p := &page{T: t, server: s, address: listener.Addr().String(), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// do sends a request with the cookie and the header of the session, unless change removes them, and returns the response and
// its body.
func (p *page) do(method, path, body string, change func(*http.Request)) (*http.Response, string) {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), method, "http://"+p.address+path, strings.NewReader(body))
	if err != nil {
		p.Fatal(err)
	}
	if p.cookie != nil {
		req.AddCookie(p.cookie)
		req.Header.Set(headerName, p.header)
	}
	if change != nil {
		change(req)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return resp, string(data)
}

// login exchanges a token and keeps the session. It returns the status code.
func (p *page) login(token string) int {
	p.Helper()
	resp, body := p.do(http.MethodPost, "/session", `{"token":"`+token+`"}`, nil)
	if resp.StatusCode == http.StatusOK {
		var got credentials
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			p.Fatal(err)
		}
		p.cookie, p.header = resp.Cookies()[0], got.Token
	}
	return resp.StatusCode
}

// loginOnce logs in with the token of the URL.
func (p *page) loginOnce() {
	p.Helper()
	_, token, _ := strings.Cut(p.server.URL(), "#token=")
	if code := p.login(token); code != http.StatusOK {
		p.Fatalf("login: %d", code)
	}
}

func TestOneTimeToken(t *testing.T) {
	p := start(t, false)
	if code := p.login("wrong"); code != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", code)
	}
	_, token, _ := strings.Cut(p.server.URL(), "#token=")
	if code := p.login(token); code != http.StatusOK {
		t.Fatalf("the token: %d", code)
	}
	if c := p.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" {
		t.Errorf("cookie %v is not HttpOnly and SameSite=Strict", c)
	}
	if code := p.login(token); code != http.StatusUnauthorized {
		t.Errorf("the token again: %d", code)
	}
	if resp, body := p.do(http.MethodGet, "/session", "", nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, `"context":"test"`) {
		t.Errorf("session: %s %s", resp.Status, body)
	}
	if resp, _ := p.do(http.MethodDelete, "/session", "", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("logging out: %s", resp.Status)
	}
	if resp, _ := p.do(http.MethodGet, "/api/v1/nodes", "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after logging out: %s", resp.Status)
	}
}

// TestRequests sends requests that pages of other origins and other servers on this machine can cause.
func TestRequests(t *testing.T) {
	p := start(t, false)
	p.loginOnce()
	set := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == "Host" {
					r.Host = pairs[i+1]
				} else {
					r.Header.Set(pairs[i], pairs[i+1])
				}
			}
		}
	}
	_, port, _ := net.SplitHostPort(p.address)
	for _, c := range []struct {
		name, method, path string
		change             func(*http.Request)
		want               int
	}{
		{"page", "GET", "/", nil, 200},
		{"deep link", "GET", "/r/core/v1/pods/default/p", nil, 200},
		{"page without a session", "GET", "/", func(r *http.Request) { r.Header.Del("Cookie") }, 200},
		{"link of another site to the page", "GET", "/", set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), 200},
		{"frame of another site", "GET", "/", set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), 403},
		{"port forward of another site", "POST", "/portforwards", set("Origin", "http://attacker.example"), 403},
		{"port forwards without a session", "GET", "/portforwards", func(r *http.Request) { r.Header.Del("Cookie") }, 401},
		{"missing asset", "GET", "/assets/none.js", nil, 404},
		{"API", "GET", "/api/v1/nodes", nil, 200},
		{"API of the page", "POST", "/api/v1/nodes", set("Origin", "http://"+p.address, "Sec-Fetch-Site", "same-origin"), 200},
		{"API by localhost", "GET", "/api/v1/nodes", set("Host", "localhost:"+port), 200},
		{"API without a cookie", "GET", "/api/v1/nodes", func(r *http.Request) { r.Header.Del("Cookie") }, 401},
		{"API without the header", "GET", "/api/v1/nodes", func(r *http.Request) { r.Header.Del(headerName) }, 401},
		{"API with a wrong header", "GET", "/api/v1/nodes", set(headerName, "x"), 401},
		{"link to the API", "GET", "/api/v1/nodes", set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", headerName, ""), 401},
		{"DNS rebinding", "GET", "/api/v1/nodes", set("Host", "attacker.example:"+port), 421},
		{"another port", "GET", "/", set("Host", "127.0.0.1:1"), 421},
		{"form of another site", "POST", "/api/v1/nodes", set("Origin", "http://attacker.example"), 403},
		{"form of another port", "POST", "/api/v1/nodes", set("Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"), 403},
		{"sandboxed frame", "POST", "/session", set("Origin", "null"), 403},
		{"script of another site", "GET", "/api/v1/nodes", set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), 403},
		{"WebSocket without an origin", "GET", "/stream", set("Upgrade", "websocket", "Connection", "Upgrade"), 403},
		{"WebSocket of another site", "GET", "/stream", set("Upgrade", "websocket", "Connection", "Upgrade", "Origin", "http://attacker.example"), 403},
		{"WebSocket without the subprotocol", "GET", "/stream", set("Upgrade", "websocket", "Connection", "Upgrade", "Origin", "http://"+p.address), 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := p.do(c.method, c.path, "", c.change)
			if resp.StatusCode != c.want {
				t.Errorf("%s: %s, expected %d", resp.Status, body, c.want)
			}
			policy := pagePolicy
			if c.want == 200 && strings.HasPrefix(c.path, "/api") {
				policy = proxiedPolicy
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"X-Frame-Options": "DENY", "Cache-Control": "no-store",
			} {
				if got := resp.Header.Values(name); len(got) != 1 || got[0] != want {
					t.Errorf("%s: %q, expected %q", name, got, want)
				}
			}
		})
	}
}

// TestPolicy checks that the page runs no code but its own.
func TestPolicy(t *testing.T) {
	for _, bad := range []string{"unsafe", "http:", "https:", "*", "blob:"} {
		if strings.Contains(pagePolicy, bad) {
			t.Errorf("the policy contains %s", bad)
		}
	}
}

// TestProxy checks what the API server receives and what the page receives.
func TestProxy(t *testing.T) {
	p := start(t, false)
	p.loginOnce()
	resp, body := p.do(http.MethodPatch, "/apis/apps/v1/namespaces/a%2Fb/deployments/d?dryRun=All", `{"a":1}`, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/merge-patch+json")
		r.Header.Set("Authorization", "Bearer other")
		r.Header.Set("Origin", "http://"+p.address)
	})
	var got struct {
		Method, Path, Body string
		Header             http.Header
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s %s: %v", resp.Status, body, err)
	}
	if got.Method != "PATCH" || got.Path != "/apis/apps/v1/namespaces/a%2Fb/deployments/d?dryRun=All" || got.Body != `{"a":1}` || got.Header.Get("Content-Type") != "application/merge-patch+json" {
		t.Errorf("the API server received %+v", got)
	}
	for _, name := range []string{"Cookie", headerName, "Origin", "Referer"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the API server received the header %s", name)
		}
	}
	if len(resp.Cookies()) > 0 {
		t.Errorf("the page received the cookie %v of the API server", resp.Cookies())
	}
}

// dial opens a WebSocket with the session.
func (p *page) dial(path, protocol string) *websocket.Conn {
	p.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{protocol, protocolPrefix + p.header}}
	conn, resp, err := dialer.DialContext(p.Context(), "ws://"+p.address+path, http.Header{
		"Origin": {"http://" + p.address}, "Cookie": {p.cookie.Name + "=" + p.cookie.Value},
	})
	if err != nil {
		p.Fatalf("%v: %v", err, resp)
	}
	resp.Body.Close()
	p.Cleanup(func() { conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		p.Fatal(err)
	}
	if conn.Subprotocol() != protocol {
		p.Errorf("the server selected the subprotocol %q", conn.Subprotocol())
	}
	return conn
}

// TestTerminal sends data through an upgraded connection to the API server.
func TestTerminal(t *testing.T) {
	p := start(t, false)
	p.loginOnce()
	conn := p.dial("/api/v1/namespaces/default/pods/p/exec?command=sh", "v5.channel.k8s.io")
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := conn.ReadMessage(); err != nil || string(data) != "echo hello" {
		t.Errorf("received %q, %v", data, err)
	}
}

// TestStreamEndsWithSession checks that logging out closes the stream.
func TestStreamEndsWithSession(t *testing.T) {
	p := start(t, false)
	p.loginOnce()
	conn := p.dial("/stream", stream.Protocol)
	if err := conn.WriteJSON(map[string]any{"op": "open", "id": 1, "path": "/api/v1/pods", "view": "object"}); err != nil {
		t.Fatal(err)
	}
	for {
		_, data, err := conn.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), `"synced":true`) {
			break
		}
	}
	p.do(http.MethodDelete, "/session", "", nil)
	for {
		_, _, err := conn.ReadMessage()
		if websocket.IsCloseError(err, websocket.CloseGoingAway) {
			return
		}
		if err != nil {
			t.Fatalf("the stream was not closed: %v", err)
		}
	}
}

// TestLogin logs in with tokens of the cluster.
func TestLogin(t *testing.T) {
	p := start(t, true)
	if strings.Contains(p.server.URL(), "token") {
		t.Errorf("the URL %s contains a token", p.server.URL())
	}
	for _, token := range []string{"", "bad"} {
		if code := p.login(token); code != http.StatusUnauthorized {
			t.Errorf("token %q: %d", token, code)
		}
	}
	if code := p.login(goodToken); code != http.StatusOK {
		t.Fatalf("a good token: %d", code)
	}
	if resp, body := p.do(http.MethodGet, "/api/v1/nodes", "", nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, "Bearer "+goodToken) {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestSessions(t *testing.T) {
	now := time.Now()
	s := newSessions(time.Hour)
	s.now = func() time.Time { return now }
	first := s.create(nil)
	now = now.Add(time.Minute)
	second := s.create(nil)
	if s.find(first.cookie, first.header) != first || s.find(first.cookie, second.header) != nil || s.find(second.cookie, first.header) != nil {
		t.Error("sessions are not found by both secrets")
	}
	now = now.Add(time.Hour - time.Minute)
	if s.find(first.cookie, first.header) != nil || s.find(second.cookie, second.header) != second {
		t.Error("the sessions do not expire after their lifetime")
	}
	select {
	case <-first.done:
	default:
		t.Error("the expired session is not done")
	}
	for range maxSessions {
		now = now.Add(time.Millisecond)
		s.create(nil)
	}
	if len(s.byCookie) != maxSessions || s.find(second.cookie, second.header) != nil {
		t.Errorf("%d sessions, and the oldest is not deleted", len(s.byCookie))
	}
}

func TestParseManifest(t *testing.T) {
	for _, c := range []struct{ name, manifest, want string }{
		{"one", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}", "Pod/a"},
		{"several", "# comment\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n", "Pod/a Pod/b"},
		{"JSON", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`, "Pod/a"},
		{"list", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]", "Pod/a"},
		{"empty", "# nothing", "the manifest contains no object"},
		{"no kind", "apiVersion: v1", "document 1 has no apiVersion or kind"},
		{"duplicate field", "apiVersion: v1\nkind: Pod\nkind: Pod", "document 1 is not valid YAML"},
		{"not an object", "[]", "document 1 is not valid YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, err := parseManifest(c.manifest)
			var got []string
			for _, o := range objects {
				got = append(got, o.GetKind()+"/"+o.GetName())
			}
			text := strings.Join(got, " ")
			if err != nil {
				text = err.Error()
			}
			if !strings.HasPrefix(text, c.want) {
				t.Errorf("%q, expected %q", text, c.want)
			}
		})
	}
}
