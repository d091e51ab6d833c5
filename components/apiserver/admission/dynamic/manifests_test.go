package dynamic

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/api"
	"hyperkube/internal/api/admissionregistration"
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

// TestManifests loads a manifest directory and checks the errors for invalid manifests.
func TestManifests(t *testing.T) {
	for name, tt := range map[string]struct{ plugin, kind, text, want string }{
		"good":         {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", staticPolicy, ""},
		"another name": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", strings.ReplaceAll(staticPolicy, ".static.k8s.io", ""), "must have a name ending with"},
		"to no policy": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", strings.Replace(staticPolicy, "policyName: no-bad", "policyName: other", 1), "other.static.k8s.io"},
		"invalid":      {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", strings.Replace(staticPolicy, "[Deny]", "[Maybe]", 1), "spec.validationActions[0]"},
		"another kind": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", "apiVersion: v1\nkind: ConfigMap\n", "no kind"},
		"not its kind": {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyConfiguration", staticPolicy, "unsupported resource type"},
		"no webhook":   {"ValidatingAdmissionWebhook", "WebhookAdmissionConfiguration", staticPolicy, "unsupported resource type"},
		"of another":   {"ValidatingAdmissionPolicy", "MutatingAdmissionPolicyConfiguration", staticPolicy, "unexpected type"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := newManifests(func(plugin string) io.Reader {
			return strings.NewReader("apiVersion: apiserver.config.k8s.io/v1\nkind: " + tt.kind + "\nstaticManifestsDir: " + dir + "\n")
		}, func(plural string) *api.Resource {
			for _, r := range admissionregistration.Resources() {
				if r.Plural == plural {
					return r
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.directory(tt.plugin)
		if tt.want == "" && (err != nil || got != dir) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}
