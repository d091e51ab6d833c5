package dashboard

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

const (
	// headerName is the request header with the header token of a session.
	headerName = "X-Hyperkube-Dashboard"
	// protocolPrefix is the prefix of the WebSocket subprotocol with the header token of a session. Pages cannot set
	// headers of WebSocket requests.
	protocolPrefix = "dashboard.hyperkube.io."
	// protocolHeader is the request header with the subprotocols that a WebSocket client accepts.
	protocolHeader = "Sec-Websocket-Protocol"
)

// pagePolicy is the Content-Security-Policy of the page: it runs only the scripts and style sheets of this server, without
// inline code, connects to no other server, and cannot be embedded.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// proxiedPolicy is the Content-Security-Policy of responses of the API server. Some of them are written by workloads (the
// proxy subresource of a Pod), and must not run as part of this origin if a browser shows them.
const proxiedPolicy = "default-src 'none'; sandbox"

// guard rejects requests that a page of another origin may have caused, and sets the security headers of responses.
type guard struct {
	// hosts are the permitted values of the Host header. A request for another host means that its name resolves to this
	// server, but that it is not the server that the page of that host comes from (DNS rebinding). If it is empty, all
	// hosts are permitted.
	hosts []string
	next  http.Handler
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	if len(g.hosts) > 0 && !slices.Contains(g.hosts, strings.ToLower(r.Host)) {
		http.Error(w, "the dashboard is not served for this host name; open the URL that the command printed", http.StatusMisdirectedRequest)
		return
	}
	if !sameOrigin(r) {
		http.Error(w, "requests of pages of other origins are not permitted", http.StatusForbidden)
		return
	}
	g.next.ServeHTTP(w, r)
}

// sameOrigin reports whether a request may come from the page of this server. Only the page itself, which contains no data,
// may be opened by links of other origins. WebSocket requests must have an Origin header, which all browsers send.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin != "" {
		_, host, ok := strings.Cut(origin, "://")
		if !ok || !strings.EqualFold(host, r.Host) {
			return false
		}
	}
	if isWebSocket(r) {
		return origin != ""
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none": // old browsers and programs send no header
		return true
	}
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// headerToken returns the header token of a request and removes it from the request, so that the API server does not
// receive it.
func headerToken(r *http.Request) string {
	if !isWebSocket(r) {
		token := r.Header.Get(headerName)
		r.Header.Del(headerName)
		return token
	}
	token := ""
	var others []string
	for _, line := range r.Header.Values(protocolHeader) {
		for protocol := range strings.SplitSeq(line, ",") {
			protocol = strings.TrimSpace(protocol)
			if value, ok := strings.CutPrefix(protocol, protocolPrefix); ok {
				token = value
			} else if protocol != "" {
				others = append(others, protocol)
			}
		}
	}
	r.Header.Set(protocolHeader, strings.Join(others, ", "))
	return token
}

// loopbackHosts are the values of the Host header of requests to the loopback address and port of a listener.
// Browsers omit the port 80.
func loopbackHosts(port string) []string {
	var hosts []string
	for _, host := range []string{"127.0.0.1", "localhost", "::1"} {
		hosts = append(hosts, net.JoinHostPort(host, port))
		if port == "80" {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
