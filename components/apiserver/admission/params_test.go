package admission

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
)

// reader is an authorizer that allows get of one resource.
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
		{"superuser", "", &user.DefaultInfo{Groups: []string{"system:masters"}}, nil, false},
		{"as before", "", bob, policy, false},
		{"none before", "", bob, &admissionv1.ValidatingAdmissionPolicy{}, true},
	} {
		p := PolicyParams{Authorizer: test.may, Resource: func(gvk schema.GroupVersionKind) string { return strings.ToLower(gvk.Kind) + "s" }}
		op, old := admission.Create, runtime.Object(nil)
		gvk, gvr := admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
		if test.old != nil {
			op, old = admission.Update, test.old
		}
		attrs := admission.NewAttributesRecord(policy, old, gvk, "", "p", gvr, "", op, nil, false, test.user)
		err := p.Validate(context.Background(), attrs, nil)
		if (err != nil) != test.refuse || err != nil && !strings.Contains(err.Error(), `must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestPolicyParamsOfBindings creates bindings as a user that may get a single ConfigMap.
func TestPolicyParamsOfBindings(t *testing.T) {
	of := func(apiVersion, kind string) *admissionv1.ParamKind {
		return &admissionv1.ParamKind{APIVersion: apiVersion, Kind: kind}
	}
	kube := fake.NewClientset(
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "maps"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{ParamKind: of("v1", "ConfigMap")}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "secrets"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{ParamKind: of("v1", "Secret")}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{ParamKind: of("a/b/c", "X")}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "strange"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{ParamKind: of("x/v1", "X")}},
		&admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "maps"}, Spec: admissionv1.MutatingAdmissionPolicySpec{ParamKind: of("v1", "ConfigMap")}},
	)
	p := PolicyParams{Kube: kube, Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() == "get" && a.GetResource() == "configmaps" && a.GetNamespace() == "ns" && a.GetName() == "one" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}), Resource: func(gvk schema.GroupVersionKind) string {
		if gvk.Group != "" {
			return ""
		}
		return strings.ToLower(gvk.Kind) + "s"
	}}
	one := &admissionv1.ParamRef{Name: "one", Namespace: "ns"}
	const noRight = `permission on the object referenced by paramRef`
	for _, test := range []struct {
		name, policy string
		ref, old     *admissionv1.ParamRef
		mutates      bool
		group, err   string
	}{
		{name: "no parameters", policy: "secrets"},
		{name: "may get it", policy: "maps", ref: one},
		{name: "may get it for mutation", policy: "maps", ref: one, mutates: true},
		{name: "another", policy: "maps", ref: &admissionv1.ParamRef{Name: "other", Namespace: "ns"}, err: `"get" ` + noRight},
		{name: "another for mutation", policy: "maps", ref: &admissionv1.ParamRef{Name: "other", Namespace: "ns"}, mutates: true, err: `user get does not have "&{bob`},
		{name: "by a selector", policy: "maps", ref: &admissionv1.ParamRef{Namespace: "ns", Selector: &metav1.LabelSelector{}}, err: `"list" ` + noRight},
		{name: "of another kind", policy: "secrets", ref: one, err: noRight},
		{name: "as before", policy: "secrets", ref: one, old: &admissionv1.ParamRef{Name: "one", Namespace: "ns"}},
		{name: "superuser", policy: "secrets", ref: one, group: "system:masters"},
		{name: "no policy", policy: "absent", ref: one, err: `unable to get policy absent to determine minimum required permissions and user &{bob`},
		{name: "no version", policy: "broken", ref: one, err: `unable to parse paramKind &ParamKind{APIVersion:a/b/c,Kind:X,} to determine`},
		{name: "no resource", policy: "strange", ref: one, err: `unable to resolve paramKind &ParamKind{APIVersion:x/v1,Kind:X,} to determine`},
	} {
		u := &user.DefaultInfo{Name: "bob", Groups: []string{test.group}}
		object := func(ref *admissionv1.ParamRef) runtime.Object {
			if test.mutates {
				return &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: test.policy, ParamRef: ref}}
			}
			return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: test.policy, ParamRef: ref}}
		}
		var old runtime.Object
		op := admission.Create
		if test.old != nil {
			op, old = admission.Update, object(test.old)
		}
		err := p.Validate(t.Context(), admission.NewAttributesRecord(object(test.ref), old, admissionv1.SchemeGroupVersion.WithKind("X"), "", "b",
			admissionv1.SchemeGroupVersion.WithResource("x"), "", op, nil, false, u), nil)
		if test.err != "" && (err == nil || !strings.Contains(err.Error(), "spec.paramRef: Forbidden: ")) {
			t.Errorf("%s: %v", test.name, err)
		}
		wantErr(t, err, test.err)
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
