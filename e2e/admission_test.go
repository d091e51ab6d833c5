package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/credentials/pki"
)

// admissionHook adds a label to objects, and denies objects named "refused".
func admissionHook(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r := review.Request
	answer := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: r.Name != "refused", Warnings: []string{"seen by the webhook"}}
	if !answer.Allowed {
		answer.Result = &metav1.Status{Message: "no " + r.Kind.Kind + " of that name"}
	} else if req.URL.Path == "/mutate" {
		patch := admissionv1.PatchTypeJSONPatch
		answer.PatchType = &patch
		// Fields that are not in the schema of a custom object are pruned.
		junk := "/data"
		if r.Kind.Kind != "ConfigMap" {
			junk = "/junk"
		}
		answer.Patch = fmt.Appendf(nil, `[{"op": "add", "path": "/metadata/labels", "value": {"hooked": "yes"}}, {"op": "add", "path": %q, "value": {"a": "b"}}]`, junk)
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// TestAdmission runs a webhook server on the host, behind a Service, that admits built-in and
// custom objects. It also tests admission policies.
func TestAdmission(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	nodes, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := ""
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP && address == "" {
			address = a.Address
		}
	}
	keys, err := pki.Ensure(t.TempDir(), pki.Config{NodeName: "hook"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := keys.CA.NewPair(pki.Server("hook", "hook."+s.name+".svc"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(admissionHook), ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { server.Close(); <-done })

	config := strings.NewReplacer("NS", s.name, "ADDRESS", address, "PORT", fmt.Sprint(listener.Addr().(*net.TCPAddr).Port),
		"CA", base64.StdEncoding.EncodeToString(keys.CA.CertPEM)).Replace(`
apiVersion: v1
kind: Service
metadata: {name: hook}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hook-1, labels: {kubernetes.io/service-name: hook}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS]}]
ports: [{name: https, port: PORT}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.NS.example.com}
spec:
  group: NS.example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {size: {type: integer, default: 1}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: NS}
webhooks:
- name: mutate.example.com
  clientConfig: {caBundle: CA, service: {namespace: NS, name: hook, path: /mutate}}
  sideEffects: None
  admissionReviewVersions: [v1]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  - {apiGroups: [NS.example.com], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NS}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments/scale]}
    - {apiGroups: [NS.example.com], apiVersions: [v1], operations: [CREATE], resources: [gadgets]}
  validations:
  - expression: "!has(object.spec) || object.spec.replicas <= 3"
    messageExpression: "'no more than 3, not ' + string(object.spec.replicas)"
  - expression: "!has(object.size) || object.size < 10"
    reason: Invalid
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NS}
spec: {policyName: NS, validationActions: [Deny]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: none}
spec:
  replicas: 0
  selector: {matchLabels: {app: none}}
  template:
    metadata: {labels: {app: none}}
    spec: {containers: [{name: a, image: none.invalid/a}]}
`)
	s.apply(config)
	t.Cleanup(func() {
		_, _ = s.run("", "delete", "--ignore-not-found", "validatingadmissionpolicybinding/"+s.name, "validatingadmissionpolicy/"+s.name,
			"mutatingwebhookconfiguration/"+s.name, "crd/gadgets."+s.name+".example.com")
	})
	gadget := func(name string, size int) string {
		return fmt.Sprintf("apiVersion: %s.example.com/v1\nkind: Gadget\nmetadata: {name: %s}\nsize: %d\n", s.name, name, size)
	}
	for _, step := range []struct{ input, args, want string }{
		{"", "create configmap dry --dry-run=server -o jsonpath={.metadata.labels.hooked}", "yes"},
		{"", "create configmap refused", `error: failed to create configmap: admission webhook "mutate.example.com" denied the request: no ConfigMap of that name`},
		{"", "create configmap one", "Warning: seen by the webhook"},
		{gadget("small", 2), "create -f - -o jsonpath=<{.metadata.labels.hooked}{.junk}>", "<yes>"},
		{gadget("refused", 2), "create -f -", "no Gadget of that name"},
		{gadget("big", 20), "create -f -", "failed expression: !has(object.size) || object.size < 10"},
		{"", "scale deployment none --replicas=7", "denied request: no more than 3, not 7"},
		{"", "get validatingadmissionpolicy " + s.name + " -o jsonpath={.status.observedGeneration}", "1"},
	} {
		var out string
		// Changes of the admission configuration take effect after moments, changes of policies
		// within a second.
		for deadline := time.Now().Add(minTimeout); time.Now().Before(deadline); {
			if out, _ = s.run(step.input, strings.Fields(step.args)...); strings.Contains(out, step.want) {
				break
			}
			if _, err := s.run("", "delete", "--ignore-not-found", "--wait=false", "configmap/one", "gadgets."+s.name+".example.com/big", "gadgets."+s.name+".example.com/refused"); err != nil {
				t.Log(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s: no %q in\n%s", step.args, step.want, out)
		}
	}
}
