package compose_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
)

// TestAcceptHeaders checks which Accept headers the OpenID discovery documents reject, and the
// paths of the profiling pages.
func TestAcceptHeaders(t *testing.T) {
	e := start(t)
	kube, err := kubernetes.NewForConfig(e.server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, accept string
		want         int
	}{
		{"/openid/v1/jwks", "application/json", http.StatusNotAcceptable},
		{"/openid/v1/jwks", "text/plain, application/jwk-set+json;q=0.1", http.StatusOK},
		{"/openid/v1/jwks", "*/*", http.StatusOK},
		{"/.well-known/openid-configuration", "application/json", http.StatusOK},
		{"/.well-known/openid-configuration", "application/*", http.StatusNotAcceptable},
	} {
		var code int
		result := kube.RESTClient().Get().AbsPath(tt.path).SetHeader("Accept", tt.accept).Do(t.Context()).StatusCode(&code)
		if code != tt.want {
			t.Errorf("%s as %s: %d %v", tt.path, tt.accept, code, result.Error())
		}
	}
}

// TestHealthOrder checks the order of the checks in /readyz, which users compare with upstream's.
func TestHealthOrder(t *testing.T) {
	e := start(t)
	kube, err := kubernetes.NewForConfig(e.server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"/readyz": {"ping", "log", "etcd", "etcd-readiness", "informer-sync", "start-apiserver-admission-initializer"},
		"/livez":  {"ping", "log", "etcd", "start-apiserver-admission-initializer"},
	} {
		text, err := kube.RESTClient().Get().AbsPath(path).Param("verbose", "").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "[+]"); ok {
				names = append(names, strings.TrimPrefix(strings.TrimSuffix(name, " ok"), "poststarthook/"))
			}
		}
		if len(names) < len(want) || !slices.Equal(names[:len(want)], want) {
			t.Errorf("%s begins with %q", path, names)
		}
		for _, after := range [][2]string{
			{"start-kube-apiserver-identity-lease-garbage-collector", "storage-readiness"}, {"storage-readiness", "start-legacy-token-tracking-controller"},
			{"priority-and-fairness-config-producer", "bootstrap-controller"}, {"kube-apiserver-autoregistration", "autoregister-completion"},
		} {
			if i := slices.Index(names, after[0]); i < 0 || i+1 >= len(names) || names[i+1] != after[1] {
				t.Errorf("%s: %s does not follow %s: %q", path, after[1], after[0], names)
			}
		}
	}
}
