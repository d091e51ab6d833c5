package validatingadmissionpolicystatus

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"

	"hyperkube/components/controllers/internal/controltest"
)

// served is a discovery client with the schemas of the built-in types.
type served struct {
	discovery.DiscoveryInterface
	schemas openapi.Client
}

func (s served) OpenAPIV3() openapi.Client { return s.schemas }

// TestTypesChecked: type errors in expressions are written to the status once for each generation.
func TestTypesChecked(t *testing.T) {
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
				},
			}}},
			Validations: []admissionv1.Validation{
				{Expression: "object.spec.replicas > 1"},
				{Expression: "object.spec.replicas > '1'"},
				{Expression: "true", MessageExpression: "object.spec.none"},
			},
		},
	}
	f := controltest.New(t, policy)
	f.Kube.Resources = []*metav1.APIResourceList{{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
		{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: metav1.Verbs{"create"}},
	}}}
	c, err := New(f.Env, served{f.Kube.Discovery(), openapitest.NewEmbeddedFileClient()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.sync(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	got, err := f.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Status.ObservedGeneration != 2 || got.Status.TypeChecking == nil || len(got.Status.TypeChecking.ExpressionWarnings) != 2 {
		t.Fatalf("status %+v", got.Status)
	}
	for i, want := range []struct{ ref, warning string }{
		{"spec.validations[1].expression", "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_'"},
		{"spec.validations[2].messageExpression", "undefined field 'none'"},
	} {
		if w := got.Status.TypeChecking.ExpressionWarnings[i]; w.FieldRef != want.ref || !strings.Contains(w.Warning, want.warning) {
			t.Errorf("%s: %s", w.FieldRef, w.Warning)
		}
	}
	// The observed generation shows that the policy was checked.
	got.Status.TypeChecking = nil
	f.Cache(got)
	f.Kube.ClearActions()
	if err := c.sync(t.Context(), "p"); err != nil || len(f.Kube.Actions()) > 0 {
		t.Errorf("repeated check: %v %v", f.Kube.Actions(), err)
	}
}
