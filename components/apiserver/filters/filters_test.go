package filters

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/components/apiserver/metrics"
)

// TestPanic checks the response and the metrics of a request that panicked.
func TestPanic(t *testing.T) {
	m := metrics.New()
	chain, err := New(Config{
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
		}),
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		}),
		Metrics: m, Error: func(http.ResponseWriter, *http.Request, error) {}, Log: slog.New(slog.DiscardHandler),
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oh") }))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	chain.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/pods", nil))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("answered %d", w.Code)
	}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_request_total" {
			continue
		}
		for _, l := range f.GetMetric()[0].GetLabel() {
			if l.GetName() == "code" && l.GetValue() != "500" {
				t.Errorf("counted as %s", l.GetValue())
			}
		}
	}
}

// recorder creates an audit event for each request, as auditors do.
type recorder struct {
	t   *testing.T
	ids *[]types.UID
}

func (r recorder) Serve(w http.ResponseWriter, req *http.Request, _ time.Time, next http.Handler) {
	ac := audit.AuditContextFrom(req.Context())
	if err := ac.Init(audit.RequestAuditConfig{Level: auditapi.LevelMetadata}, nil); err != nil {
		r.t.Errorf("request %s cannot be recorded: %v", req.URL.Path, err)
	}
	*r.ids = append(*r.ids, ac.AuditID())
	next.ServeHTTP(w, req)
}

func (r recorder) Refused(w http.ResponseWriter, req *http.Request, _ time.Time, _ string, next http.Handler) {
	next.ServeHTTP(w, req)
}

// TestNestedRequests checks that in-process requests that the server makes while handling a
// request have their own audit events.
func TestNestedRequests(t *testing.T) {
	var chain http.Handler
	var ids []types.UID
	chain, err := New(Config{
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
		}),
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		}),
		Auditor: recorder{t, &ids}, Metrics: metrics.New(), Error: func(http.ResponseWriter, *http.Request, error) {}, Log: slog.New(slog.DiscardHandler),
	}, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/api/v1/pods" {
			inner := httptest.NewRequest("GET", "/api/v1/resourcequotas", nil)
			chain.ServeHTTP(httptest.NewRecorder(), inner.WithContext(req.Context()))
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	chain.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("recorded as %q", ids)
	}
}

// TestRefusedImpersonation checks that the response to a rejected impersonation has the header
// X-Content-Type-Options: nosniff.
func TestRefusedImpersonation(t *testing.T) {
	chain, err := New(Config{
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
		}),
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		}),
		Metrics: metrics.New(), Error: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusForbidden) }, Log: slog.New(slog.DiscardHandler),
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request reached the next handler") }))
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"Impersonate-User", "Impersonate-Uid"} {
		req := httptest.NewRequest("GET", "/api/v1/pods", nil)
		req.Header.Set(header, "x")
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, req)
		if w.Code != http.StatusForbidden || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", header, w.Code, w.Header())
		}
	}
}
