package fairness

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func ask(t *testing.T, l interface {
	Serve(http.ResponseWriter, *http.Request, *apirequest.RequestInfo, user.Info, http.Handler)
}, verb string, u *user.DefaultInfo, next http.HandlerFunc) *httptest.ResponseRecorder {
	t.Helper()
	info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: "pods", Namespace: "x", Path: "/api/v1/namespaces/x/pods"}
	ctx, cancel := context.WithTimeout(apirequest.WithRequestInfo(context.Background(), info), 2*time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	l.Serve(w, httptest.NewRequestWithContext(ctx, http.MethodGet, info.Path, nil), info, u, next)
	return w
}

var (
	admin    = &user.DefaultInfo{Name: "root", Groups: []string{"system:masters", "system:authenticated"}}
	ordinary = &user.DefaultInfo{Name: "n", Groups: []string{"system:authenticated"}}
)

// TestMandatory checks that before any configuration is loaded, administrators are always served,
// and other users within the limits.
func TestMandatory(t *testing.T) {
	client := fake.NewClientset()
	l, err := New(Config{Informers: informers.NewSharedInformerFactory(client, 0), Client: client.FlowcontrolV1(), Seats: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		// The controller's queue is only stopped by Run.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = l.Run(ctx)
	}()
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	w := ask(t, l, "list", ordinary, func(w http.ResponseWriter, _ *http.Request) {
		// The only seat is occupied now.
		if got := ask(t, l, "get", ordinary, ok); got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" {
			t.Errorf("a second request: %d %v", got.Code, got.Header())
		}
		if got := ask(t, l, "get", admin, ok); got.Code != http.StatusOK {
			t.Errorf("an administrator's request: %d", got.Code)
		}
		w.WriteHeader(http.StatusOK)
	})
	if w.Code != http.StatusOK {
		t.Errorf("the first request: %d", w.Code)
	}
	if _, ok := w.Header()[headerSchema]; !ok || headerSchema != http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) {
		t.Errorf("headers: %v", w.Header())
	}
	// A watch that is never initialized releases its seat when it ends.
	if got := ask(t, l, "watch", ordinary, ok); got.Code != http.StatusOK {
		t.Errorf("a watch: %d", got.Code)
	}
	if got := ask(t, l, "get", ordinary, ok); got.Code != http.StatusOK {
		t.Errorf("a request after the watch: %d", got.Code)
	}
}

func TestPlain(t *testing.T) {
	p := NewPlain(1, 0)
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	ask(t, p, "get", ordinary, func(http.ResponseWriter, *http.Request) {
		for _, c := range []struct {
			verb string
			who  *user.DefaultInfo
			want int
		}{{"list", ordinary, 429}, {"list", admin, 200}, {"create", ordinary, 200}, {"watch", ordinary, 200}} {
			if got := ask(t, p, c.verb, c.who, ok).Code; got != c.want {
				t.Errorf("%s by %s: %d, want %d", c.verb, c.who.Name, got, c.want)
			}
		}
	})
}
