package apiextensions

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestValidationErrors compares validation errors with those of kube-apiserver v1.37.
func TestValidationErrors(t *testing.T) {
	approval := "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation " +
		"\"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
	keys := "spec.validation.openAPIV3Schema.properties[l].x-kubernetes-list-map-keys: Invalid value: [\"a\",\"b\"]: " +
		"entries must all be names of item properties"
	for _, c := range []struct {
		name, group, schema, extra string
		want                       []string // a subset of the expected errors; nil: no errors
	}{
		{name: "plain", group: "example.com", schema: "{type: object}"},
		{name: "unapproved", group: "b.k8s.io", schema: "{type: object}", want: []string{approval}},
		{
			name: "reported twice", group: "example.com",
			schema: "{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, b], " +
				"items: {type: object, properties: {c: {type: string}}}}}}",
			want: []string{keys, keys},
		},
		{
			// The library's validation of selectable fields requires a structural schema.
			name: "selectable without structure", group: "example.com",
			schema: "{type: object, properties: {a: {type: string, dependencies: {a: [b]}}}}",
			extra:  "selectableFields: [{jsonPath: .a}]",
			want:   []string{"spec.validation.openAPIV3Schema.properties[a].dependencies: Forbidden: dependencies is not supported"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &apiextensionsv1.CustomResourceDefinition{}
			text := "metadata: {name: foos." + c.group + "}\nspec:\n  group: " + c.group +
				"\n  scope: Cluster\n  names: {plural: foos, kind: Foo}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n" +
				"    schema: {openAPIV3Schema: " + c.schema + "}\n"
			if c.extra != "" {
				text += "    " + c.extra + "\n"
			}
			if err := yaml.UnmarshalStrict([]byte(text), d); err != nil {
				t.Fatal(err)
			}
			res := definition().Resource()
			res.Default(d)
			res.PrepareCreate(t.Context(), d)
			var got []string
			for _, e := range res.Validate(t.Context(), d) {
				got = append(got, e.Error())
			}
			if c.want == nil && len(got) > 0 {
				t.Errorf("found %q", got)
			}
			for _, want := range c.want {
				i := slices.Index(got, want)
				if i < 0 {
					t.Fatalf("%q is not among %q", want, got)
				}
				got = slices.Delete(got, i, i+1)
			}
		})
	}
}

// TestFinalizers checks that a finalizer without a domain is accepted.
func TestFinalizers(t *testing.T) {
	d := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(`metadata: {name: foos.example.com, finalizers: [cleanup]}
spec: {group: example.com, scope: Cluster, names: {plural: foos, kind: Foo}, versions: [
  {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}`), d); err != nil {
		t.Fatal(err)
	}
	res := definition().Resource()
	res.Default(d)
	res.PrepareCreate(t.Context(), d)
	if errs := res.Validate(t.Context(), d); len(errs) > 0 {
		t.Errorf("create was rejected: %v", errs)
	}
	d.ResourceVersion = "1"
	if errs := res.Update.Validate(t.Context(), d, d.DeepCopy()); len(errs) > 0 {
		t.Errorf("update was rejected: %v", errs)
	}
}
