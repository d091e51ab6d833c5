package dataplane

import (
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"hyperkube/components/gateway/model"
)

// handler serves the HTTP requests of a port by the rules of the routes that are attached to it.
type handler struct {
	plane *Plane
	id    model.PortID
}

// ServeHTTP implements http.Handler. It answers a request by the rule of the route that matches it, and adds it to the
// metrics and, if configured, the access log.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	h.plane.metrics.active.Inc()
	rec := &recorder{ResponseWriter: w}
	var route string
	metrics := h.plane.metrics.unrouted
	// ReverseProxy panics to close the connection of a response that the backend has not completed.
	defer func() {
		h.plane.metrics.active.Dec()
		took := time.Since(began)
		metrics.observe(rec.code(), took)
		if h.plane.accessLog != nil {
			h.plane.accessLog.write(accessRecord{request: r, began: began, took: took, code: rec.code(), bytes: rec.bytes, route: route, endpoint: rec.endpoint})
		}
	}()
	if x := h.find(rec, r); x != nil {
		route, metrics = x.rule.route, x.rule.metrics
		x.serve()
	}
}

// find finds the rule for a request. It returns nil if it has answered the request with an error: 404 without a
// listener or matching rule, 405 for CONNECT, and 421 if the TLS connection was made for another listener.
func (h *handler) find(w *recorder, r *http.Request) *exchange {
	p := h.plane.table.Load().ports[h.id]
	if p == nil {
		http.Error(w, "no listener", http.StatusNotFound) // the port is being closed
		return nil
	}
	if r.Method == http.MethodConnect {
		http.Error(w, "CONNECT is not supported", http.StatusMethodNotAllowed)
		return nil
	}
	host := normalizeHost(r.Host)
	l, ok := p.listeners.find(host)
	if r.TLS != nil {
		// A connection for one listener must not reach another one, whose certificates or client verification may differ.
		if own, known := p.listeners.find(normalizeHost(r.TLS.ServerName)); known && (!ok || own != l) {
			http.Error(w, "the connection is for another host", http.StatusMisdirectedRequest)
			return nil
		}
	}
	if !ok {
		http.NotFound(w, r)
		return nil
	}
	cleanPath(r)
	match, found := l.find(host, r)
	if found == nil {
		http.NotFound(w, r)
		return nil
	}
	if limit := h.plane.cfg.Limits.BodyBytes; limit > 0 {
		r.Body = http.MaxBytesReader(w, r.Body, limit)
	}
	return &exchange{plane: h.plane, port: h.id, rule: found, match: match, in: r, w: w}
}

// cleanPath removes "." and ".." from the path of a request, because backends do so too. Otherwise a request could reach
// paths of a backend that its route does not match.
func cleanPath(r *http.Request) {
	if !strings.Contains(r.URL.Path, "/.") {
		return
	}
	for part := range strings.SplitSeq(r.URL.Path, "/") {
		if part != "." && part != ".." {
			continue
		}
		clean := path.Clean("/" + r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/") || part == r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
			clean = strings.TrimSuffix(clean, "/") + "/"
		}
		r.URL.Path, r.URL.RawPath = clean, ""
		return
	}
}

// redirect answers a request with a redirect to its own URL, in which f replaces scheme, host, port or path. The port
// is omitted if it is the default of the scheme.
func redirect(w http.ResponseWriter, r *http.Request, port int32, f *model.Redirect, match *model.Match) {
	scheme, host, number := "http", f.Hostname, f.Port
	if r.TLS != nil {
		scheme = "https"
	}
	if number == 0 && f.Scheme == "" {
		number = port // only a redirect to another scheme changes the port too
	}
	if f.Scheme != "" {
		scheme = f.Scheme
	}
	if host == "" {
		host = normalizeHost(r.Host)
	}
	if number != 0 && !(scheme == "http" && number == 80 || scheme == "https" && number == 443) {
		host = net.JoinHostPort(host, strconv.Itoa(int(number)))
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u := *r.URL
	u.Scheme, u.Host = scheme, host
	modifyPath(&u.Path, &u.RawPath, f.Path, match)
	w.Header().Set("Location", u.String())
	w.WriteHeader(f.Code)
}

// modifyPath changes a path and its escaped form. It replaces the prefix by which the request matched, or the whole
// path if m says so or the request did not match by a prefix. It does nothing if m is nil.
func modifyPath(plain, escaped *string, m *model.PathModifier, match *model.Match) {
	switch {
	case m == nil:
	case !m.ReplacePrefix || match.PathKind != model.PathPrefix:
		*plain, *escaped = m.Value, ""
	default:
		value := strings.TrimSuffix(m.Value, "/")
		rest := strings.TrimPrefix(*plain, match.Path)
		if rest, ok := strings.CutPrefix(*escaped, match.Path); ok && *escaped != "" {
			*escaped = value + rest
		} else {
			*escaped = ""
		}
		if *plain = value + rest; *plain == "" {
			*plain = "/"
		}
	}
}

// modifyHeaders changes headers. Nil is no change.
func modifyHeaders(h http.Header, f *model.HeaderFilter) {
	if f == nil {
		return
	}
	for _, name := range f.Remove {
		h.Del(name)
	}
	for _, v := range f.Set {
		h[v.Name] = []string{v.Value}
	}
	for _, v := range f.Add {
		h[v.Name] = append(h[v.Name], v.Value)
	}
}

// recorder is a ResponseWriter that records the status code and size of the response.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	endpoint string // that answered; empty if none
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It records the first status that is not informational.
func (w *recorder) WriteHeader(code int) {
	if w.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// code returns the status code of the response. A handler that writes nothing answers with 200.
func (w *recorder) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}
