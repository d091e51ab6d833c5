package customresource

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestDecide(t *testing.T) {
	other := parse(t, `
metadata: {name: others.example.com}
spec: {group: example.com}
status: {acceptedNames: {plural: others, singular: other, shortNames: [o], kind: Other, listKind: OtherList}}
`)
	for _, test := range []struct {
		names       string
		reason      string
		message     string
		established bool
		plural      string
	}{
		{"{plural: foos, singular: foo, kind: Foo, listKind: FooList}", "NoConflicts", "no conflicts found", true, "foos"},
		{"{plural: foos, singular: other, kind: Foo, listKind: FooList}", "SingularConflict", `"other" is already in use`, false, "foos"},
		{"{plural: o, singular: foo, kind: Foo, listKind: FooList}", "PluralConflict", `"o" is already in use`, false, ""},
		{"{plural: foos, singular: foo, shortNames: [f, o], kind: Foo, listKind: FooList}", "ShortNamesConflict", `"o" is already in use`, false, "foos"},
		{"{plural: foos, singular: foo, kind: Other, listKind: FooList}", "KindConflict", `"Other" is already in use`, false, "foos"},
		{"{plural: foos, singular: foo, kind: Foo, listKind: OtherList}", "ListKindConflict", `"OtherList" is already in use`, false, "foos"},
	} {
		d := parse(t, "{metadata: {name: x}, spec: {group: example.com, names: "+test.names+"}}")
		all := map[string]*crd{"others": other, "x": d}
		updateStatus(d, takenNamesOf("example.com", all))
		c := apihelpers.FindCRDCondition(d, apiextensionsv1.NamesAccepted)
		if c == nil || c.Reason != test.reason || c.Message != test.message {
			t.Errorf("%s: %v, want %s", test.names, c, test.reason)
		}
		if got := apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established); got != test.established || d.Status.AcceptedNames.Plural != test.plural {
			t.Errorf("%s: established %t, plural %q", test.names, got, d.Status.AcceptedNames.Plural)
		}
		again := d.DeepCopy()
		updateStatus(again, takenNamesOf("example.com", all))
		if text(t, again) != text(t, d) {
			t.Errorf("%s: deciding again changes %s to %s", test.names, text(t, d.Status), text(t, again.Status))
		}
	}
}

func TestConditions(t *testing.T) {
	for _, test := range []struct {
		name, text string
		kind       apiextensionsv1.CustomResourceDefinitionConditionType
		reason     string
	}{
		{"unapproved", "{metadata: {name: x}, spec: {group: foo.k8s.io}}", apiextensionsv1.KubernetesAPIApprovalPolicyConformant, "MissingAnnotation"},
		{"approved", "{metadata: {name: x, annotations: {api-approved.kubernetes.io: 'https://github.com/kubernetes/kubernetes/pull/1'}}, spec: {group: foo.k8s.io}}",
			apiextensionsv1.KubernetesAPIApprovalPolicyConformant, "ApprovedAnnotation"},
		{"bypassed", "{metadata: {name: x, annotations: {api-approved.kubernetes.io: 'unapproved, so what'}}, spec: {group: foo.k8s.io}}",
			apiextensionsv1.KubernetesAPIApprovalPolicyConformant, "UnapprovedAnnotation"},
		{"shapeless", "{metadata: {name: x}, spec: {group: a.b, preserveUnknownFields: true}}", apiextensionsv1.NonStructuralSchema, "Violations"},
		{"bundle", "{metadata: {name: x}, spec: {group: a.b, names: {plural: p, kind: K}, conversion: {strategy: Webhook, webhook: {clientConfig: {caBundle: bm8=}}}}}",
			apiextensionsv1.Established, "InvalidCABundle"},
	} {
		d := parse(t, test.text)
		updateStatus(d, takenNamesOf("", nil))
		if c := apihelpers.FindCRDCondition(d, test.kind); c == nil || c.Reason != test.reason {
			t.Errorf("%s: %v, want %s", test.name, c, test.reason)
		}
	}
}
