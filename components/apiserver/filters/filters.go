// Package filters is what every request goes through before it is answered:
// who sent it, and may they. The chain is one handler, read from top to
// bottom, for the steps share what they found out.
package filters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// Error answers with a Status.
	Error func(w http.ResponseWriter, req *http.Request, err error)
	Log   *slog.Logger
}

// Chain lets through to its next handler what is well-formed, authenticated
// and authorized.
type Chain struct {
	cfg  Config
	next http.Handler
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
	return &Chain{cfg: cfg, next: next}, nil
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
	defer c.recover(w, req)
	w.Header().Set("Audit-Id", auditID(req))
	if err != nil {
		c.cfg.Error(w, req, apierrors.NewBadRequest(err.Error()))
		return
	}
	long := request.LongRunning(info)
	if long {
		defer c.cfg.Metrics.LongRunning(info, req.Method)()
	} else {
		defer c.cfg.Metrics.InFlight(req.Method == http.MethodGet)()
		defer func() {
			c.cfg.Metrics.Request(info, req.Method, query.Has("dryRun"), w.status(), time.Since(start))
		}()
	}

	ctx := req.Context()
	if !long {
		timeout := c.cfg.Timeout
		if s := query.Get("timeout"); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil {
				c.cfg.Error(w, req, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL: %v", err)))
				return
			}
			if d > 0 {
				timeout = min(timeout, d)
			}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	ctx = warning.WithWarningRecorder(ctx, &warnings{header: w.Header()})

	u, err := c.authenticate(ctx, req)
	if err != nil {
		c.cfg.Log.DebugContext(ctx, "request not authenticated", "path", req.URL.Path, "error", err)
		c.cfg.Error(w, req, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	if u, err = c.impersonate(ctx, req, u); err != nil {
		c.cfg.Error(w, req, err)
		return
	}
	ctx = apirequest.WithUser(ctx, u)
	req = req.WithContext(ctx)
	if err := c.authorize(ctx, info, u); err != nil {
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
	if len(c.cfg.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, c.cfg.Audiences)
	}
	resp, ok, err := c.cfg.Authenticator.AuthenticateRequest(req.WithContext(ctx))
	if err == nil && !ok {
		err = errNobody
	}
	if err != nil {
		return nil, err
	}
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
	return uuid.NewString()
}
