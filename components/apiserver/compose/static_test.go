package compose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/compose"
)

const staticPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-bad.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'bad'", message: none of these}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-bad.static.k8s.io}
spec: {policyName: no-bad.static.k8s.io, validationActions: [Deny]}
`

// TestStaticManifests loads a policy from a file. The policy is in effect although the API has
// none, and the API rejects its name.
func TestStaticManifests(t *testing.T) {
	dir := t.TempDir()
	manifests := filepath.Join(dir, "policies")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: ValidatingAdmissionPolicyConfiguration\nstaticManifestsDir: " + manifests + "\n"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("policies/one.yaml", staticPolicy)
	write("policy.yaml", config)
	write("admission.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- {name: ValidatingAdmissionPolicy, path: policy.yaml}\n")
	e := startOn(t, nil, func(cfg *compose.Config) { cfg.AdmissionConfigFile = filepath.Join(dir, "admission.yaml") })
	clients, err := e.server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kube := clients.Kube
	maps := kube.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "none of these") {
		t.Errorf("invalid: %v", err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "good"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	_, err = kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mine" + ".static.k8s.io"},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "are reserved for static manifest-based configurations") {
		t.Errorf("a name of files: %v", err)
	}
}
