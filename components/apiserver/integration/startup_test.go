package integration

import (
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/discovery"
)

// unknown is an Aggregation that has not listed its APIServices yet.
type unknown struct{ ready chan struct{} }

func (unknown) Generation() uint64                            { return 1 }
func (unknown) Priority(schema.GroupVersion) (group, _ int32) { return 1, 1 }
func (u unknown) Ready() <-chan struct{}                      { return u.ready }
func (unknown) Versions() []discovery.Version                 { return nil }
func (unknown) Handler(string) http.Handler                   { return nil }

// TestRequestsDuringStartup checks that no request fails with "not found" before the APIs of
// aggregated servers are known.
func TestRequestsDuringStartup(t *testing.T) {
	others := unknown{make(chan struct{})}
	s := startServer(t, apiserver.Config{Aggregation: others})
	client, err := clientrest.HTTPClientFor(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) *http.Response {
		t.Helper()
		resp, err := client.Get("http://kubernetes.in-memory" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	missing := []string{"/apis/x.example.com/v1/foos/f", "/apis/x.example.com/v1", "/apis/x.example.com", "/apis", "/openapi/v3"}
	for _, path := range missing {
		resp := get(path + "?timeout=10ms")
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "5" {
			t.Errorf("%s: %s, Retry-After %q", path, resp.Status, resp.Header.Get("Retry-After"))
		}
	}
	for _, path := range []string{"/api", "/api/v1", "/api/v1/namespaces", "/apis/apps/v1/deployments"} {
		if resp := get(path); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	// Waiting requests are answered as soon as the APIs are known.
	waited := make(chan int)
	go func() { waited <- get(missing[0]).StatusCode }()
	close(others.ready)
	if got := <-waited; got != http.StatusNotFound {
		t.Errorf("%s: %d once it is known", missing[0], got)
	}
	if resp := get(missing[3]); resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s once it is known", missing[3], resp.Status)
	}
}
