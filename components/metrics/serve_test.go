package metrics

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"hyperkube/internal/client"
	"hyperkube/internal/credentials/pki"
)

func TestServe(t *testing.T) {
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Unix() - 10
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/stats/summary" || req.Header.Get("Authorization") != "Bearer me" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(kubeletSummary(began, 10, 4)))
	}))
	defer kubelet.Close()
	addr, ok := kubelet.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no address")
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr.IP.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(addr.Port)
	kube := fake.NewClientset(node,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", RestartCount: 2}}, InitContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: map[string]string{
			"requestheader-client-ca-file": string(set.FrontProxyCA.CertPEM), "requestheader-allowed-names": `["front-proxy-client"]`}})
	inf := informers.NewSharedInformerFactory(kube, 0)
	s, err := New(Config{Address: "127.0.0.1:0", InsecureKubelets: true, Clients: &client.Clients{REST: &rest.Config{BearerToken: "me"}, Kube: kube, Informers: inf}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer inf.Shutdown()
	defer cancel()
	inf.StartWithContext(ctx)
	inf.WaitForCacheSyncWithContext(ctx)
	// A scrape from a minute ago, and a new one from the kubelet.
	before, err := parse(kubeletSummary(began-60, 4, 1))
	if err != nil {
		t.Fatal(err)
	}
	s.scraper.scrapes.add("n", before)
	s.scraper.scrapeAll(ctx)

	api := httptest.NewUnstartedServer(s.handler())
	api.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	api.StartTLS()
	defer api.Close()
	get := func(as *pki.Pair, path string) (int, string) {
		t.Helper()
		cfg := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a test certificate
		if as != nil {
			cfg.Certificates = []tls.Certificate{as.TLS()}
		}
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}
		defer c.CloseIdleConnections()
		resp, err := c.Get(api.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	proxy := set.FrontProxyClient
	other, err := set.FrontProxyCA.NewPair(pki.Client("other-user"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		as   *pki.Pair
		path string
		code int
		want string
	}{
		{nil, "/livez", 200, "ok"},
		{nil, "/readyz", 503, "not been scraped"},
		{nil, prefix + "/v1beta1/nodes", 401, "Unauthorized"},
		{other, prefix + "/v1beta1/nodes", 401, "Unauthorized"},
		{set.APIServerEtcdClient, prefix + "/v1beta1/nodes", 401, "Unauthorized"},
		{proxy, prefix + "/v1beta1", 200, `"kind":"PodMetrics"`},
		{proxy, "/apis", 200, `"groupVersion":"metrics.k8s.io/v1beta1"`},
		{proxy, "/apis", 200, `"groupVersion":"history.metrics.hyperkube.io/v1alpha1"`},
		{proxy, historyPrefix, 200, `"kind":"PodHistory"`},
		{nil, historyPrefix + "/nodes", 401, "Unauthorized"},
		{proxy, historyPrefix + "/nodes/n", 200, `"memory":{"values":[1.5e+09]}`},
		{proxy, historyPrefix + "/nodes/n?range=24h", 200, `"stepSeconds":300`},
		{proxy, historyPrefix + "/nodes/n?range=25h", 400, "from 15s to 24h"},
		{proxy, historyPrefix + "/nodes?labelSelector=a", 400, "selectors are not supported"},
		{proxy, historyPrefix + "/nodes/none", 404, `nodes.history.metrics.hyperkube.io \"none\" not found`},
		{proxy, historyPrefix + "/pods", 200, `"kind":"PodHistoryList"`},
		{proxy, historyPrefix + "/namespaces/a/pods/p?range=15s", 200, `"restarts":{"values":[3]}`},
		{proxy, historyPrefix + "/namespaces/a/persistentvolumeclaims", 200, `"used":{"values":[50]}`},
		{proxy, historyPrefix + "/namespaces/b/persistentvolumeclaims", 200, `"items":[]`},
		{proxy, historyPrefix + "/controlplanes", 200, `"items":[]`},
		{proxy, prefix + "/v1beta1/nodes", 200, `"name":"n"`},
		{proxy, prefix + "/v1beta1/nodes?labelSelector=zone%3Db", 200, `"items":[]`},
		{proxy, prefix + "/v1beta1/nodes/n", 200, `"usage":{"cpu":"100m"`},
		{proxy, prefix + "/v1beta1/nodes/none", 404, `nodes.metrics.k8s.io \"none\" not found`},
		{proxy, prefix + "/v1beta1/pods", 200, `"containers":[{"name":"web","usage":{"cpu":"50m","memory":"2Ki"}}]`},
		{proxy, prefix + "/v1beta1/namespaces/a/pods?labelSelector=app%3Dweb&fieldSelector=metadata.name%3Dp", 200, `"namespace":"a"`},
		{proxy, prefix + "/v1beta1/namespaces/b/pods", 200, `"items":[]`},
		{proxy, prefix + "/v1beta1/namespaces/a/pods?labelSelector=%21%21", 400, "BadRequest"},
		{proxy, prefix + "/v1beta1/namespaces/a/pods?fieldSelector=spec.x%3D1", 400, "field label not supported"},
		{proxy, prefix + "/v1beta1/namespaces/a/pods/p", 200, `"window":"1m0s"`},
		{proxy, prefix + "/v1beta1/namespaces/a/pods/none", 404, `pods.metrics.k8s.io \"a/none\" not found`},
	} {
		code, body := get(tc.as, tc.path)
		if code != tc.code || !strings.Contains(body, tc.want) {
			t.Errorf("%s: %d %s", tc.path, code, body)
		}
	}
}
