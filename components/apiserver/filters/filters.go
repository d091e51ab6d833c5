// Package filters is the filter chain that every request passes before it is handled:
// authentication, audit, impersonation, limits, and authorization. The chain is a single handler,
// because the steps share their results.
package filters

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/request"
)

// Config is the configuration of a Chain: the handlers and checks through which all requests go.
type Config struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	// Audiences are the identifiers of this server. A token is accepted if it is valid for one of
	// them. Authenticator finds them in the context.
	Audiences authenticator.Audiences
	Metrics   *metrics.Metrics
	// Timeout is the maximum duration of requests that are not long-running. Zero means one minute.
	Timeout time.Duration
	// Limiter limits concurrent requests. Nil means no limit.
	Limiter Limiter
	// Auditor records requests. Nil means no auditing.
	Auditor Auditor
	// Tracer starts a span for each request for a resource that is not long-running. Nil means no traces.
	Tracer trace.Tracer
	// Guard contains settings for browsers and load balancers.
	Guard Guard
	// Error responds to a request with the Status for err.
	Error func(w http.ResponseWriter, req *http.Request, err error)
	// Log receives messages about panics and failed authentication. Nil means slog's default.
	Log *slog.Logger
}

// Limiter limits concurrent requests. Serve calls next, immediately or later, or responds with 429.
type Limiter interface {
	Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler)
}

// Auditor writes audit events of requests. The request context contains the user and RequestInfo.
type Auditor interface {
	// Serve calls next and records the request.
	Serve(w http.ResponseWriter, req *http.Request, received time.Time, next http.Handler)
	// Refused calls next, which rejects the request, and records the rejection. It is used for
	// requests that are rejected early, for example because authentication has failed. message
	// describes the error.
	Refused(w http.ResponseWriter, req *http.Request, received time.Time, message string, next http.Handler)
}

// Chain is an http.Handler that authenticates, audits, limits and authorizes requests, and passes
// those that are allowed to the next handler.
type Chain struct {
	cfg  Config
	next http.Handler
	// authenticated is the part of the chain after authentication, limited the part after the
	// limiter.
	authenticated, limited http.Handler
	userLimits             userLimits
}

// New validates cfg, applies defaults and returns a chain that passes allowed requests to next.
func New(cfg Config, next http.Handler) (*Chain, error) {
	if cfg.Authenticator == nil || cfg.Authorizer == nil || cfg.Metrics == nil || cfg.Error == nil {
		return nil, errors.New("the filter chain requires an authenticator, an authorizer, metrics and an error writer")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	c := &Chain{cfg: cfg, next: next}
	c.authenticated = http.HandlerFunc(c.serveAudited)
	c.limited = http.HandlerFunc(c.serveLimited)
	return c, nil
}

// inProcessUser is the context key of the user of an in-process request, which needs no
// authentication.
type inProcessUser struct{}

// WithInProcessUser returns a context whose requests are sent by the user u from within this
// process. The chain does not authenticate them.
func WithInProcessUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, inProcessUser{}, u)
}

// ServeHTTP parses and authenticates the request, sets its deadline unless it is long-running, and continues with
// auditing, impersonation, limits and authorization. Each step responds itself if it rejects the request. It recovers
// from panics of the handler.
func (c *Chain) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	start := time.Now()
	w := &writer{ResponseWriter: rw}
	defer drain(w, req)
	var query url.Values
	if req.URL.RawQuery != "" {
		query = req.URL.Query()
	}
	info, err := request.Parse(req.Method, req.URL, query)
	id := auditID(req)
	w.Header()["Audit-Id"] = []string{id}
	if c.cfg.Guard.on() && c.cfg.Guard.apply(w, req) {
		return
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("Internal Server Error: %q: failed to create RequestInfo: %v", req.RequestURI, err), http.StatusInternalServerError)
		return
	}
	long := request.LongRunning(info)
	if long {
		defer c.cfg.Metrics.LongRunning(info, req.Method)()
	} else {
		defer c.cfg.Metrics.InFlight(req.Method == http.MethodGet)()
	}
	defer func() {
		c.cfg.Metrics.Request(info, metrics.Answer{Method: req.Method, Code: w.status(), Size: w.size, Took: time.Since(start), DryRun: query.Has("dryRun"), Long: long})
	}()
	defer c.recover(w, req)

	ctx := req.Context()
	timeout, err := c.timeout(query)
	if long {
		clearDeadlines(w)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	if c.cfg.Auditor != nil {
		if audit.AuditContextFrom(ctx) != nil {
			ctx = withoutAuditContext{ctx}
		}
		ctx = audit.WithAuditContext(ctx)
		audit.WithAuditID(ctx, types.UID(id))
	}
	if err != nil && !long {
		c.refuse(w, req.WithContext(ctx), start, err.Error(), err)
		return
	}
	ctx = warning.WithWarningRecorder(ctx, &warnings{header: w.Header()})

	u, err := c.authenticate(ctx, req)
	if err != nil {
		c.cfg.Metrics.Unauthenticated(time.Since(start))
		c.cfg.Log.DebugContext(ctx, "API request not authenticated, rejected with 401", "method", req.Method, "path", req.URL.Path, "err", err)
		c.refuse(w, req.WithContext(ctx), start, authenticationMethods(req), apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	if !long {
		traced, end := c.startSpan(ctx, req, u, start, id)
		if end != nil {
			defer end(w)
			c.traceStage(traced, "authentication", start)
		}
		ctx = traced
	}
	if u.GetName() == user.APIServerUser {
		defer c.cfg.Metrics.Self(info, req.Method)
	}
	req = req.WithContext(apirequest.WithUser(ctx, u))
	if c.cfg.Auditor != nil {
		w.entered = time.Now()
		c.cfg.Auditor.Serve(w, req, start, c.authenticated)
		return
	}
	c.cfg.Metrics.ObserveStage(metrics.Audit, 0)
	c.serveUser(w, req)
}

// serveAudited handles an authenticated request after the Auditor has created its audit event. The
// Auditor calls it.
func (c *Chain) serveAudited(w http.ResponseWriter, req *http.Request) {
	c.cfg.Metrics.ObserveStage(metrics.Audit, time.Since(ownWriter(w).entered))
	c.serveUser(w, req)
}

// withoutAuditContext is the context of an in-process request that was made while handling another request.
// It hides the other request's audit context, because the new request has its own audit event.
type withoutAuditContext struct{ context.Context } //nolint:containedctx // it implements context.Context

// Value implements context.Context. It returns nil instead of the audit context of the other
// request.
func (u withoutAuditContext) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*audit.AuditContext); ok {
		return nil
	}
	return v
}

// timeout returns the timeout of a request that is not long-running: the client's query parameter timeout, up to the
// server's limit, or the limit if the parameter is missing or not positive. It returns a BadRequest error if the
// parameter is not a duration.
func (c *Chain) timeout(query url.Values) (time.Duration, error) {
	s := query.Get("timeout")
	if s == "" {
		return c.cfg.Timeout, nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return c.cfg.Timeout, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err))
	case d <= 0:
		return c.cfg.Timeout, nil
	}
	return min(d, c.cfg.Timeout), nil
}

// clearDeadlines removes the read and write deadlines that the HTTP server has set for the
// connection or stream. It is called for long-running requests.
func clearDeadlines(w *writer) {
	rc := http.NewResponseController(w.ResponseWriter)
	_ = rc.SetReadDeadline(time.Time{})  // in-process requests have none
	_ = rc.SetWriteDeadline(time.Time{}) // see above
}

// refuse responds with err to a request whose authentication failed or whose timeout is invalid, and records the
// rejection with message in the audit log. start is the time at which the request arrived.
func (c *Chain) refuse(w http.ResponseWriter, req *http.Request, start time.Time, message string, err error) {
	if c.cfg.Auditor == nil {
		c.cfg.Error(w, req, err)
		return
	}
	c.cfg.Auditor.Refused(w, req, start, message, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.cfg.Error(w, req, err)
	}))
}

// serveUser handles an authenticated request. With impersonation headers it continues as the
// impersonated user, and otherwise as the authenticated one.
func (c *Chain) serveUser(w http.ResponseWriter, req *http.Request) {
	if impersonates(req.Header) {
		c.serveAs(w, req)
		return
	}
	c.cfg.Metrics.ObserveStage(metrics.Impersonation, 0)
	c.serveEffectiveUser(w, req)
}

// serveEffectiveUser handles a request after impersonation. It reads the request body, unless the request is from
// this process, waits for seats of API Priority and Fairness, and then calls serveLimited. A deferred response is
// sent after the seats are released. Without a Limiter it only calls serveLimited.
func (c *Chain) serveEffectiveUser(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	u, _ := apirequest.UserFrom(ctx)
	if c.cfg.Limiter == nil {
		c.serveLimited(w, req)
		return
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	own := ownWriter(w)
	if _, inProcess := ctx.Value(inProcessUser{}).(user.Info); !inProcess {
		begun, ok := c.userLimits.readAhead(w, req, info, u)
		if !ok {
			return
		}
		defer begun()
		own.onSeats = begun
	}
	own.canDefer, own.entered = true, time.Now()
	c.cfg.Limiter.Serve(w, req, info, u, c.limited)
	own.canDefer = false
	if own.code == http.StatusTooManyRequests && !own.passed {
		c.cfg.Metrics.Terminated(info, req.Method, own.code)
	}
	if own.deferredSend != nil {
		c.userLimits.send(w, u.GetName(), own.privateBytes, own.deferredSend)
	}
}

// ownWriter returns the chain's writer that w wraps. w may be the response writer of an auditor. If w wraps no writer
// of the chain, the result is a new one around w.
func ownWriter(w http.ResponseWriter) *writer {
	for {
		if own, ok := w.(*writer); ok {
			return own
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return &writer{ResponseWriter: w}
		}
		w = u.Unwrap()
	}
}

// serveLimited authorizes a request that has its seats, and calls the next handler. The Limiter calls it. It responds
// with 403 if the request is not allowed.
func (c *Chain) serveLimited(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	own := ownWriter(w)
	own.passed = true
	if own.onSeats != nil {
		own.onSeats()
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	u, _ := apirequest.UserFrom(ctx)
	now := time.Now()
	if c.cfg.Limiter != nil {
		c.cfg.Metrics.ObserveStage(metrics.Fairness, now.Sub(own.entered))
		c.traceStage(ctx, "priorityandfairness", own.entered)
	}
	if err := c.authorize(ctx, info, u, now); err != nil {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		c.cfg.Error(w, req, err)
		return
	}
	c.next.ServeHTTP(w, req)
}

// errNoCredentials means that a request has no credentials and anonymous requests are not allowed.
var errNoCredentials = errors.New("no credentials")

// authenticate returns the user of a request and removes the header Authorization, so that neither aggregated servers
// nor logs contain the token. It returns an error if there are no or wrong credentials. The user of an in-process
// request is in ctx.
func (c *Chain) authenticate(ctx context.Context, req *http.Request) (user.Info, error) {
	if u, ok := ctx.Value(inProcessUser{}).(user.Info); ok {
		return u, nil
	}
	began := time.Now()
	if len(c.cfg.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, c.cfg.Audiences)
	}
	resp, ok, err := c.cfg.Authenticator.AuthenticateRequest(req.WithContext(ctx))
	if err == nil && !ok {
		err = errNoCredentials
	}
	if err != nil {
		c.cfg.Metrics.ObserveStage(metrics.Authentication, time.Since(began))
		return nil, err
	}
	var certificate *x509.Certificate
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && req.Header.Get("Authorization") == "" {
		certificate = req.TLS.PeerCertificates[0]
	}
	now := time.Now()
	c.cfg.Metrics.Authenticated(resp.User.GetName(), certificate, now, now.Sub(began))
	c.cfg.Metrics.ObserveStage(metrics.Authentication, now.Sub(began))
	// Remove the credentials, so that neither aggregated servers nor logs contain them.
	req.Header.Del("Authorization")
	return resp.User, nil
}

// recover handles a panic of the handler, so that one request cannot crash the server: it logs the panic and responds
// with 500 if the response has not started. It repeats http.ErrAbortHandler, with which handlers abort a response. It
// must be deferred directly.
func (c *Chain) recover(w *writer, req *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // the server uses this value to abort a response
	}
	c.cfg.Log.ErrorContext(req.Context(), "handler of API request panicked; this request failed, other requests are not affected: report this bug with the stack", "method", req.Method, "path", req.URL.Path,
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.code == 0 && !w.hijacked {
		http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
	}
}

// auditID returns the audit ID that the client has sent, if it has at most 64 characters and no line breaks, or a new
// one.
func auditID(req *http.Request) string {
	if id := req.Header.Get("Audit-ID"); id != "" && len(id) <= 64 && !strings.ContainsAny(id, "\r\n") {
		return id
	}
	return newID()
}

// newID returns a random UUID. It is not a secret, so it does not need a cryptographic random
// number generator.
func newID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // variant 10
	return id.String()
}
