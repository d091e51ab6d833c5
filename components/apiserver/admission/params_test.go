package admission

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// reader may get one resource.
type reader string

func (r reader) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && a.GetResource() == string(r) && a.GetNamespace() == "*" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (r reader) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

func (reader) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
}

func TestPolicyParams(t *testing.T) {
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "Secret"}}}
	bob := &user.DefaultInfo{Name: "bob"}
	for _, test := range []struct {
		name   string
		may    reader
		user   user.Info
		old    *admissionv1.ValidatingAdmissionPolicy
		refuse bool
	}{
		{"may not read them", "configmaps", bob, nil, true},
		{"may read them", "secrets", bob, nil, false},
		{"master", "", &user.DefaultInfo{Groups: []string{"system:masters"}}, nil, false},
		{"as before", "", bob, policy, false},
		{"none before", "", bob, &admissionv1.ValidatingAdmissionPolicy{}, true},
	} {
		p := PolicyParams{Authorizer: test.may, Resource: func(gvk schema.GroupVersionKind) string { return strings.ToLower(gvk.Kind) + "s" }}
		op, attrs := admission.Create, admission.Attributes(nil)
		gvk, gvr := admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
		if test.old != nil {
			op = admission.Update
			attrs = admission.NewAttributesRecord(policy, test.old, gvk, "", "p", gvr, "", op, nil, false, test.user)
		} else {
			attrs = admission.NewAttributesRecord(policy, nil, gvk, "", "p", gvr, "", op, nil, false, test.user)
		}
		err := p.Validate(context.Background(), attrs, nil)
		if (err != nil) != test.refuse || err != nil && !strings.Contains(err.Error(), `must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestHardAntiAffinity(t *testing.T) {
	p := hardAntiAffinity{onCreateUpdate}
	for key, ok := range map[string]bool{corev1.LabelHostname: true, "zone": false} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}}}
		err := p.Validate(context.Background(), admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), "x", "p",
			corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, nil), nil)
		if (err == nil) != ok {
			t.Errorf("%s: %v", key, err)
		}
	}
}
