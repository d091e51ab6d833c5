package filters

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/components/apiserver/metrics"
)

// TestPanic: a request that panicked is answered so, and counted so.
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
