package compose_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"hyperkube/components/apiserver/compose"
	"hyperkube/internal/testing/testwait"
)

// TestAuditAnnotations checks that annotations of webhooks and policies are part of the request's
// audit event, both in the log and at the audit webhook.
func TestAuditAnnotations(t *testing.T) {
	var mu sync.Mutex
	sent := map[string]string{} // by the audit webhook
	note := func(into map[string]string, ev *auditv1.Event) {
		if ev.ObjectRef != nil && ev.ObjectRef.Resource == "secrets" && ev.Verb == "create" {
			maps.Copy(into, ev.Annotations)
		}
	}
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(req.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range list.Items {
			note(sent, &list.Items[i])
		}
	}))
	// The sink must outlive the API server: in blocking mode, requests wait until their events are delivered, also
	// those that the server sends itself while it stops.
	t.Cleanup(sink.Close)
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	log := filepath.Join(dir, "audit.log")
	e := startOn(t, nil, func(cfg *compose.Config) {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		cfg.Audit.Flags(flags)
		if err := flags.Parse([]string{
			"--audit-policy-file=" + file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]"),
			"--audit-log-path=" + log, "--audit-webhook-mode=blocking",
			"--audit-webhook-config-file=" + file("sink.conf", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: c}}]\nusers: [{name: c, user: {}}]\nclusters: [{name: c, cluster: {server: %q}}]", sink.URL)),
		}); err != nil {
			t.Fatal(err)
		}
	})
	clients, err := e.server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	ctx, kube, h, none := t.Context(), clients.Kube, newHooks(t), registrationv1.SideEffectClassNone
	newNamespace(t, kube, "noted")
	v1 := kube.AdmissionregistrationV1()
	if _, err := v1.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "notes"}, Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "notes.example.com", ClientConfig: h.config("annotate"), SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: only("noted"), Rules: rule("", "v1", "secrets", "CREATE"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v1.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "keys"},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &registrationv1.MatchResources{
				ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: rule("", "v1", "secrets", "CREATE")[0]}},
			},
			Validations:      []registrationv1.Validation{{Expression: "size(object.data) < 2", Message: "too many"}},
			AuditAnnotations: []registrationv1.AuditAnnotation{{Key: "n", ValueExpression: "string(size(object.data))"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v1.ValidatingAdmissionPolicyBindings().Create(ctx, &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "keys"},
		Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "keys", ValidationActions: []registrationv1.ValidationAction{registrationv1.Audit},
			MatchResources: &registrationv1.MatchResources{NamespaceSelector: only("noted")},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	missing := func(got map[string]string) error {
		for key, want := range map[string]string{
			"notes.example.com/who": "hook", "keys/n": "2", "authorization.k8s.io/decision": "allow",
			"validation.policy.admission.k8s.io/validation_failure": `"message":"too many","policy":"keys","binding":"keys","expressionIndex":0,"validationActions":["Audit"]`,
		} {
			if !strings.Contains(got[key], want) {
				return fmt.Errorf("%s is %q, not %s, of %v", key, got[key], want, got)
			}
		}
		return nil
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, StringData: map[string]string{"a": "", "b": ""}}
		if _, err := kube.CoreV1().Secrets("noted").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		logged := map[string]string{}
		for line := range strings.Lines(string(text)) {
			var ev auditv1.Event
			if err := json.Unmarshal([]byte(line), &ev); err != nil {
				return err
			}
			note(logged, &ev)
		}
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(missing(logged), missing(sent))
	})
}
