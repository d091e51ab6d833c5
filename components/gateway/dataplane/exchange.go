package dataplane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"

	"hyperkube/components/gateway/model"
	"hyperkube/internal/base/lifecycle"
)

const (
	// maxAttempts is the number of endpoints that are tried if no connection can be established.
	maxAttempts = 3
	// maxMirroredBody is the size of the largest request body that is mirrored. It must be kept in memory until the copy is sent.
	maxMirroredBody = 1 << 20
	// mirrorTimeout limits the duration of a mirrored request.
	mirrorTimeout = 10 * time.Second
	// statusClientClosed is recorded if the client closes the connection before the response.
	statusClientClosed = 499
)

// exchange is a request that a rule matches, while it is served. It is also the transport of the ReverseProxy that serves it.
type exchange struct {
	plane  *Plane
	port   model.PortID
	rule   *rule
	match  *model.Match
	in     *http.Request
	w      *recorder
	target *target
	// ends release the contexts of all attempts. They must live until the response is complete.
	ends []context.CancelFunc
}

// serve answers the request. It answers CORS preflight requests and redirects of the rule itself, and otherwise passes
// the request to a backend, chosen at random by weight. It responds with the rule's status if that backend is invalid.
func (x *exchange) serve() {
	f := &x.rule.Filters
	if f.CORS != nil && answerPreflight(x.w, x.in, f.CORS) {
		return
	}
	if f.Redirect != nil {
		if f.CORS != nil {
			addCORS(x.w.Header(), x.in, f.CORS)
		}
		modifyHeaders(x.w.Header(), f.ResponseHeaders)
		redirect(x.w, x.in, x.port.Number, f.Redirect, x.match)
		return
	}
	x.target = x.rule.targets.pick()
	if x.target == nil || x.target.pool == nil {
		http.Error(x.w, "the route has no valid backend", cmp.Or(x.rule.InvalidStatus, http.StatusInternalServerError))
		return
	}
	if len(x.rule.mirrors) > 0 {
		x.mirror()
	}
	if x.rule.Timeouts.Request > 0 {
		ctx, cancel := context.WithTimeout(x.in.Context(), x.rule.Timeouts.Request)
		defer cancel()
		x.in = x.in.WithContext(ctx)
	}
	defer func() {
		for _, end := range x.ends {
			end()
		}
	}()
	proxy := httputil.ReverseProxy{
		Rewrite: x.rewrite, Transport: x, ModifyResponse: x.modifyResponse, ErrorHandler: x.answerError,
		BufferPool: &x.plane.buffers, ErrorLog: x.plane.discard,
	}
	proxy.ServeHTTP(x.w, x.in)
}

// rewrite prepares the request to the backend: it sets the X-Forwarded headers and applies the filters of the rule and
// of the backend. RoundTrip selects the endpoint.
func (x *exchange) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	// The backend receives the query as the client sent it.
	out.URL.RawQuery = pr.In.URL.RawQuery
	out.URL.Scheme, out.URL.Host = x.target.pool.scheme(), "backend" // RoundTrip selects the endpoint
	pr.SetXForwarded()
	if f := x.rule.Filters.Rewrite; f != nil {
		if f.Hostname != "" {
			out.Host = f.Hostname
		}
		modifyPath(&out.URL.Path, &out.URL.RawPath, f.Path, x.match)
	}
	modifyRequestHeaders(out, x.rule.Filters.RequestHeaders)
	modifyRequestHeaders(out, x.target.filters.RequestHeaders)
}

// modifyRequestHeaders changes the headers of a request. The host is not among the headers of net/http.
func modifyRequestHeaders(r *http.Request, f *model.HeaderFilter) {
	modifyHeaders(r.Header, f)
	if host := r.Header.Get("Host"); f != nil && host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
}

// modifyResponse changes the headers of the response of a backend by the CORS filter and the header filters of the
// backend and the rule. It never returns an error.
func (x *exchange) modifyResponse(res *http.Response) error {
	if x.rule.Filters.CORS != nil {
		addCORS(res.Header, x.in, x.rule.Filters.CORS)
	}
	modifyHeaders(res.Header, x.target.filters.ResponseHeaders)
	modifyHeaders(res.Header, x.rule.Filters.ResponseHeaders)
	return nil
}

// answerError answers a request that no backend has answered: with 503 if the backend has no endpoints, 413 if the body
// is too large, 504 after a timeout, and otherwise 502. It writes nothing if the client has disconnected.
func (x *exchange) answerError(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadGateway
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.Is(err, errNoEndpoints):
		code = http.StatusServiceUnavailable
	case errors.As(err, &tooLarge):
		code = http.StatusRequestEntityTooLarge
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		code = http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		x.w.status = statusClientClosed
		return
	}
	x.plane.log.Debug("request to backend failed, answering with an error", "route", x.rule.route, "backend", x.target.pool.backend.Key.String(), "code", code, "err", err)
	if x.rule.Filters.CORS != nil {
		addCORS(w.Header(), r, x.rule.Filters.CORS)
	}
	http.Error(w, http.StatusText(code), code)
}

// RoundTrip implements http.RoundTripper: it sends the request to an endpoint of the backend. If no connection can be
// established, it tries other endpoints, because the request has not been sent. Otherwise it repeats a request only if the
// rule says so and the request has no body, because a part of a body may have been read already.
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	retries := 0
	if x.rule.Retry != nil {
		retries = x.rule.Retry.Attempts
	}
	connects := min(maxAttempts, max(1, x.target.pool.size()))
	for {
		e := x.target.pool.pick()
		if e == nil {
			return nil, errNoEndpoints
		}
		res, err := x.attempt(e, r)
		connects--
		switch {
		case r.Context().Err() != nil:
			return res, err
		case err != nil && isDialError(err) && connects > 0:
			continue
		case retries > 0 && r.Body == nil && (err != nil || slices.Contains(x.rule.Retry.Codes, res.StatusCode)):
			retries--
			if err == nil {
				_ = res.Body.Close() // the response is replaced by that of the next attempt
			}
			if !lifecycle.Pause(r.Context(), x.rule.Retry.Backoff) {
				return nil, r.Context().Err()
			}
			continue
		}
		x.w.endpoint = e.address
		return res, err
	}
}

// attempt sends the request to an endpoint, within the backend timeout of the rule if there is one. The timeout does
// not limit connections that are upgraded, for example to WebSocket.
func (x *exchange) attempt(e *endpoint, r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	var timer *time.Timer
	if limit := x.rule.Timeouts.Backend; limit > 0 {
		cause, cancel := context.WithCancelCause(ctx)
		timer = time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
		x.ends = append(x.ends, func() {
			timer.Stop()
			cancel(nil)
		})
		ctx = cause
	}
	out := *r
	u := *r.URL
	u.Host = e.address
	out.URL = &u
	if r.Body != nil {
		out.Body = keptBody{r.Body}
	}
	res, err := e.transport.RoundTrip(out.WithContext(ctx))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols && timer != nil {
		timer.Stop() // the connection may live longer than a request
	}
	return res, err
}

// isDialError reports whether a connection to the endpoint could not be established, so that nothing was sent.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// keptBody is a request body that an attempt does not close, because another one may need it. The server closes it itself.
type keptBody struct{ io.ReadCloser }

// Close implements io.Closer. It does nothing.
func (keptBody) Close() error { return nil }

// mirror sends copies of the request to the backends of mirror filters, in the background. A filter can apply to a
// random share of the requests. Requests that upgrade the connection, or whose body is larger than maxMirroredBody, are
// not copied. Otherwise mirror first reads the whole body.
func (x *exchange) mirror() {
	var chosen []*pool
	for _, m := range x.rule.mirrors {
		if m.numerator >= m.denominator || rand.Int32N(m.denominator) < m.numerator {
			chosen = append(chosen, m.pool)
		}
	}
	if len(chosen) == 0 || x.in.ContentLength > maxMirroredBody || x.in.Header.Get("Upgrade") != "" {
		return
	}
	var body []byte
	if x.in.ContentLength != 0 { // also if the length is not known
		var err error
		body, err = io.ReadAll(io.LimitReader(x.in.Body, maxMirroredBody+1))
		x.in.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), &errReader{x.in.Body, err}), x.in.Body}
		if err != nil || len(body) > maxMirroredBody {
			return
		}
	}
	for _, p := range chosen {
		x.plane.mirror(p, x.copyFor(p, body))
	}
}

// errReader is a reader that returns an error that occurred before, if any.
type errReader struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (r *errReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.Reader.Read(p)
}

// copyFor returns a copy of the request for a mirror, without headers that apply to the connection only.
func (x *exchange) copyFor(p *pool, body []byte) *http.Request {
	out := x.in.Clone(context.Background())
	out.RequestURI, out.Body, out.ContentLength, out.TransferEncoding = "", nil, int64(len(body)), nil
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		out.Header.Del(name)
	}
	out.URL.Scheme = p.scheme()
	modifyRequestHeaders(out, x.rule.Filters.RequestHeaders)
	return out
}

// buffers is a pool of buffers in which responses are copied.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
