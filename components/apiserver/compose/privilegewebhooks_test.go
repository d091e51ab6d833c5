package compose_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testwait"
)

// TestWebhookOnLoopback checks that a user who may create webhook configurations gets no permissions of the API
// server by pointing a webhook at a server on its loopback address: the API server presents no credentials
// there, and its own endpoints treat the call as one of an anonymous user.
func TestWebhookOnLoopback(t *testing.T) {
	e := start(t)
	pair, err := e.pki.CA.NewPair(pki.Server("webhook", "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan *http.Request, 100)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls <- req
		http.Error(w, "the answer of the webhook", http.StatusTeapot)
	}))
	// A server that asks for a certificate gets any that the client has.
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientAuth: tls.RequestClientCert}
	hook.StartTLS()
	t.Cleanup(hook.Close)

	bundle := base64.StdEncoding.EncodeToString(e.pki.CA.CertPEM)
	for name, url := range map[string]string{
		"listener": hook.URL + "/",
		"secrets":  e.url + "/api/v1/namespaces/kube-system/secrets",
		"bindings": e.url + "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	} {
		e.create(fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: %[1]s.example.org
  clientConfig: {url: "%s", caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE], scope: Namespaced}]
  matchConditions: [{name: name, expression: "object.metadata.name == '%[1]s'"}]
  sideEffects: None
  failurePolicy: Fail
  admissionReviewVersions: [v1]`, name, url, bundle))
	}
	review := func(name string) (int, string) {
		return e.send(&attempt{user: "admin", groups: []string{"system:masters"}, request: "POST /api/v1/namespaces/default/configmaps",
			headers: map[string]string{"Content-Type": "application/yaml"}, body: "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: x, name: " + name + "}}"})
	}
	for _, name := range []string{"listener", "secrets", "bindings"} {
		// The configuration takes effect when the API server has observed it.
		testwait.Succeed(t, "webhook "+name, func() error {
			status, text := review(name)
			if status != http.StatusInternalServerError || !strings.Contains(text, "failed calling webhook") {
				_, _ = e.send(&attempt{user: "admin", groups: []string{"system:masters"}, request: "DELETE /api/v1/namespaces/default/configmaps/" + name})
				return fmt.Errorf("%d: %s", status, text)
			}
			return nil
		})
	}
	select {
	case req := <-calls:
		if len(req.TLS.PeerCertificates) != 0 {
			t.Errorf("the API server presented a certificate of %s", req.TLS.PeerCertificates[0].Subject)
		}
		for name := range req.Header {
			if name == "Authorization" || strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "Impersonate-") {
				t.Errorf("the API server sent the header %s", name)
			}
		}
	default:
		t.Error("the webhook was not called")
	}
	// The API server refuses its own calls as those of an anonymous user.
	for _, name := range []string{"secrets", "bindings"} {
		if _, text := review(name); !strings.Contains(text, `is forbidden: User \"system:anonymous\"`) {
			t.Errorf("webhook %s was not refused as anonymous: %s", name, text)
		}
	}
}
