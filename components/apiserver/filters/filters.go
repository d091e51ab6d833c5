// Package filters is what every request goes through before it is answered:
// who sent it, and may they. The chain is one handler, read from top to
// bottom, for the steps share what they found out.
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

// Config of a Chain.
type Config struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	// Audiences that tokens must be for; they are told to Authenticator.
	Audiences authenticator.Audiences
	Metrics   *metrics.Metrics
	// Timeout of requests that do not run for long; zero means a minute.
	Timeout time.Duration
	// Limiter decides when a request is worked on; nil: at once.
	Limiter Limiter
	// Auditor records requests; nil: nobody does.
	Auditor Auditor
	// Guard is what is done for browsers and load balancers.
	Guard Guard
	// Error answers with a Status.
	Error func(w http.ResponseWriter, req *http.Request, err error)
	Log   *slog.Logger
}

// Limiter lets requests through as there is room for them. Serve calls next, at
// once or later, or answers that there are too many.
type Limiter interface {
	Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler)
}

// Auditor records requests. User and RequestInfo are in the requests' context.
type Auditor interface {
	// Serve calls next and records how that went.
	Serve(w http.ResponseWriter, req *http.Request, received time.Time, next http.Handler)
	// Refused is Serve for a request that is answered with an error before
	// much is known about it; message says which.
	Refused(w http.ResponseWriter, req *http.Request, received time.Time, message string, next http.Handler)
}

// Chain lets through to its next handler what is well-formed, authenticated
// and authorized.
type Chain struct {
	cfg  Config
	next http.Handler
	// authenticated is the rest of the chain once the user is known, limited
	// what is behind the limiter.
	authenticated, limited http.Handler
	shares                 shares
}

// New makes a chain in front of next.
func New(cfg Config, next http.Handler) (*Chain, error) {
	if cfg.Authenticator == nil || cfg.Authorizer == nil || cfg.Metrics == nil || cfg.Error == nil {
		return nil, errors.New("the filter chain needs an authenticator, an authorizer, metrics and an error writer")
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

type memoryUser struct{}

// WithMemoryUser marks the requests of a context as sent by u from within the
// process: they are not authenticated again.
func WithMemoryUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, memoryUser{}, u)
}

// ServeHTTP takes a request through the chain.
func (c *Chain) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	start := time.Now()
	w := &writer{ResponseWriter: rw}
	var query url.Values
	if req.URL.RawQuery != "" {
		query = req.URL.Query()
	}
	info, err := request.Parse(req.Method, req.URL, query)
	id := auditID(req)
	w.Header()["Audit-Id"] = []string{id}
	if c.cfg.Guard.on() && c.cfg.Guard.answer(w, req) {
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
		unbound(w)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	if c.cfg.Auditor != nil {
		if audit.AuditContextFrom(ctx) != nil {
			ctx = unrecorded{ctx}
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
		c.cfg.Log.DebugContext(ctx, "request not authenticated", "path", req.URL.Path, "error", err)
		c.refuse(w, req.WithContext(ctx), start, attempted(req), apierrors.NewUnauthorized("Unauthorized"))
		return
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
	c.cfg.Metrics.Passed(metrics.Audit, 0)
	c.serveUser(w, req)
}

// serveAudited goes on once the request is on the record.
func (c *Chain) serveAudited(w http.ResponseWriter, req *http.Request) {
	c.cfg.Metrics.Passed(metrics.Audit, time.Since(ownWriter(w).entered))
	c.serveUser(w, req)
}

// unrecorded is the context of a request in memory that another one has made, and
// that is on a record of its own.
type unrecorded struct{ context.Context } //nolint:containedctx // it is one

// Value as context.Context.
func (u unrecorded) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*audit.AuditContext); ok {
		return nil
	}
	return v
}

// timeout of a request that does not run for long: the client's wish, up to
// the server's own.
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

// unbound takes the limits of time off a connection or stream, which hold for
// bodies and answers of other requests.
func unbound(w *writer) {
	rc := http.NewResponseController(w.ResponseWriter)
	_ = rc.SetReadDeadline(time.Time{})  // requests in memory have none
	_ = rc.SetWriteDeadline(time.Time{}) // nor this
}

// refuse answers with err, on the record.
func (c *Chain) refuse(w http.ResponseWriter, req *http.Request, start time.Time, message string, err error) {
	if c.cfg.Auditor == nil {
		c.cfg.Error(w, req, err)
		return
	}
	c.cfg.Auditor.Refused(w, req, start, message, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.cfg.Error(w, req, err)
	}))
}

// serveUser goes on once the sender is known.
func (c *Chain) serveUser(w http.ResponseWriter, req *http.Request) {
	if impersonates(req.Header) {
		c.serveAs(w, req)
		return
	}
	c.cfg.Metrics.Passed(metrics.Impersonation, 0)
	c.serveKnown(w, req)
}

// serveKnown goes on once it is known as whom the request is to be treated.
func (c *Chain) serveKnown(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	u, _ := apirequest.UserFrom(ctx)
	if c.cfg.Limiter == nil {
		c.serveLimited(w, req)
		return
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	own := ownWriter(w)
	if _, inProcess := ctx.Value(memoryUser{}).(user.Info); !inProcess {
		begun, ok := c.shares.body(w, req, info, u)
		if !ok {
			return
		}
		defer begun()
		own.begun = begun
	}
	own.deferred, own.entered = true, time.Now()
	c.cfg.Limiter.Serve(w, req, info, u, c.limited)
	own.deferred = false
	if own.code == http.StatusTooManyRequests && !own.passed {
		c.cfg.Metrics.Terminated(info, req.Method, own.code)
	}
	if own.later != nil {
		c.shares.send(w, u.GetName(), own.private, own.later)
	}
}

// ownWriter finds the chain's own writer in w; an auditor may have put its own
// around it.
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

// serveLimited goes on when there is room.
func (c *Chain) serveLimited(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	own := ownWriter(w)
	own.passed = true
	if own.begun != nil {
		own.begun()
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	u, _ := apirequest.UserFrom(ctx)
	now := time.Now()
	if c.cfg.Limiter != nil {
		c.cfg.Metrics.Passed(metrics.Fairness, now.Sub(own.entered))
	}
	if err := c.authorize(ctx, info, u, now); err != nil {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		c.cfg.Error(w, req, err)
		return
	}
	c.next.ServeHTTP(w, req)
}

var errNobody = errors.New("no credentials")

func (c *Chain) authenticate(ctx context.Context, req *http.Request) (user.Info, error) {
	if u, ok := ctx.Value(memoryUser{}).(user.Info); ok {
		return u, nil
	}
	began := time.Now()
	if len(c.cfg.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, c.cfg.Audiences)
	}
	resp, ok, err := c.cfg.Authenticator.AuthenticateRequest(req.WithContext(ctx))
	if err == nil && !ok {
		err = errNobody
	}
	if err != nil {
		c.cfg.Metrics.Passed(metrics.Authentication, time.Since(began))
		return nil, err
	}
	var certificate *x509.Certificate
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && req.Header.Get("Authorization") == "" {
		certificate = req.TLS.PeerCertificates[0]
	}
	now := time.Now()
	c.cfg.Metrics.Authenticated(resp.User.GetName(), certificate, now, now.Sub(began))
	c.cfg.Metrics.Passed(metrics.Authentication, now.Sub(began))
	// Credentials end here: neither aggregated servers nor logs see them.
	req.Header.Del("Authorization")
	return resp.User, nil
}

// recover answers for what panicked, so that one request never takes the
// server down.
func (c *Chain) recover(w *writer, req *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // the server's own way to break a connection off
	}
	c.cfg.Log.ErrorContext(req.Context(), "request panicked", "method", req.Method, "path", req.URL.Path,
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.code == 0 && !w.hijacked {
		http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
	}
}

// auditID is the client's, or a new one.
func auditID(req *http.Request) string {
	if id := req.Header.Get("Audit-ID"); id != "" && len(id) <= 64 && !strings.ContainsAny(id, "\r\n") {
		return id
	}
	return newID()
}

// newID makes a random UUID. It need not be a secret, so it is not worth asking
// the kernel for it.
func newID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // variant 10
	return id.String()
}
