package dynamic

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery"
	clientdynamic "k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"

	"hyperkube/internal/api"
)

// counted is an OpenAPI client that counts requests. Requests fail while paths is nil.
type counted struct {
	kubernetes.Interface
	discovery.DiscoveryInterfaces
	paths    map[string]openapi.GroupVersion
	requests int
}

func (c *counted) Discovery() discovery.DiscoveryInterfaces { return c }
func (c *counted) OpenAPIV3() openapi.Client                { return c }

func (c *counted) Paths() (map[string]openapi.GroupVersion, error) {
	c.requests++
	if c.paths == nil {
		return nil, errors.New("not available")
	}
	return c.paths, nil
}

// TestSchemas checks that the first request is answered from memory and reported, and that later
// requests, and the first one if there is no list, reach the API server.
func TestSchemas(t *testing.T) {
	for name, tt := range map[string]struct {
		paths map[string]openapi.GroupVersion
		want  int // requests after the first one through the client
	}{
		"prefetched":  {map[string]openapi.GroupVersion{"apis/apps/v1": nil}, 1},
		"unavailable": {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := &counted{paths: tt.paths}
			s := newSchemas(c)
			client := s.Discovery().OpenAPIV3()
			select {
			case <-s.client.requested:
				t.Error("a request is reported before there was one")
			default:
			}
			got, err := client.Paths()
			if len(got) != len(tt.paths) || (err == nil) != (tt.paths != nil) || c.requests != tt.want {
				t.Errorf("first request: %v, %v after %d requests, want %v after %d", got, err, c.requests, tt.paths, tt.want)
			}
			select {
			case <-s.client.requested:
			default:
				t.Error("the first request is not reported")
			}
			c.paths = map[string]openapi.GroupVersion{"apis/apps/v1": nil, "apis/new/v1": nil}
			if got, err := client.Paths(); err != nil || len(got) != 2 || c.requests != tt.want+1 {
				t.Errorf("second request: %v, %v after %d requests, want a current list", got, err, c.requests)
			}
		})
	}
}

// TestMutatingPolicyHasSchemas checks that the plugin of mutating policies has requested the list of
// schemas when it is returned, so that it does not reject the first object.
func TestMutatingPolicyHasSchemas(t *testing.T) {
	var lists atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi/v3" {
			http.NotFound(w, r)
			return
		}
		lists.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"paths": {"apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=1"}}}`)
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	dynamic, err := clientdynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &Plugins{
		cfg:  Config{Informers: informers.NewSharedInformerFactory(kube, 0), Kube: kube, Dynamic: dynamic, Authorizer: unusedAuthorizer{}},
		stop: make(chan struct{}), mapper: mapper{},
	}
	if p.static, err = newManifests(p.cfg.file, func(string) *api.Resource { return nil }); err != nil {
		t.Fatal(err)
	}
	defer p.cfg.Informers.Shutdown()
	defer close(p.stop)
	if _, err := p.mutatingPolicy(mutatingpolicy.PluginName); err != nil {
		t.Fatal(err)
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("the list of schemas was requested %d times, want once", n)
	}
}

// unusedAuthorizer satisfies the plugin, which does not call it without policies.
type unusedAuthorizer struct{ authorizer.Authorizer }
