package customresource

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

const example = `
metadata: {name: foos.example.com, uid: u, generation: 1}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: foos, singular: foo, kind: Foo, listKind: FooList}
  versions:
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}, b: {type: string, default: x}}}}}}
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.num, statusReplicasPath: .status.num}}
    selectableFields: [{jsonPath: .spec.a}]
    additionalPrinterColumns:
    - {name: A, type: string, jsonPath: .spec.a}
    - {name: N, type: integer, jsonPath: .spec.num}
    - {name: Port, type: string, jsonPath: ".spec.ports[?(@.name=='web')].port", priority: 1}
    - {name: Since, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: A foo.
        properties:
          spec:
            type: object
            required: [a]
            properties:
              a: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf", message: "cannot change"}]}
              num: {type: integer, default: 1}
              short: {type: string, maxLength: 3}
              null1: {type: string, nullable: true}
              null2: {type: string}
              port: {x-kubernetes-int-or-string: true}
              ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}}
              any: {type: object, x-kubernetes-preserve-unknown-fields: true}
              whole: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}
          status: {type: object, properties: {num: {type: integer}}}
  conversion: {strategy: None}
status: {acceptedNames: {plural: foos, singular: foo, kind: Foo, listKind: FooList}}
`

func parse(t testing.TB, text string) *crd {
	t.Helper()
	d := &crd{}
	if err := yaml.UnmarshalStrict([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	return d
}

func defined(t testing.TB) *definition {
	t.Helper()
	d, err := newDefinition(parse(t, example), nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func instance(t testing.TB, version, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte("{apiVersion: example.com/" + version + ", kind: Foo, metadata: {name: x, namespace: ns}, " + text + "}"))
	if err == nil {
		err = obj.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func text(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestResources(t *testing.T) {
	all := defined(t).resources(false, false)
	if len(all) != 2 || all[0].Version != "v1" || all[1].Version != "v1beta1" {
		t.Fatalf("resources %v", all)
	}
	if got := all[1].Custom.Deprecation; got != "example.com/v1beta1 Foo is deprecated; use example.com/v1 Foo" {
		t.Errorf("deprecation %q", got)
	}
	if all[0].StoragePath != "example.com/foos" || all[0].Views["status"].Prepare == nil || all[1].Views != nil || all[1].Scale != nil {
		t.Error("subresources are mixed up")
	}
}

func TestCoerce(t *testing.T) {
	d := defined(t)
	for _, test := range []struct{ given, want, unknown string }{
		{"spec: {a: b}", `{"spec":{"a":"b","num":1}}`, ""},
		{"spec: {a: b, z: 1, any: {z: 1}}, top: 2", `{"spec":{"a":"b","any":{"z":1},"num":1}}`, "spec.z top"},
		{"spec: {null1: null, null2: null, num: null}", `{"spec":{"null1":null,"num":1}}`, ""},
		{"spec: {whole: {apiVersion: v1, kind: X, metadata: {name: q, oh: 1}, spec: {q: 1}}}",
			`{"spec":{"num":1,"whole":{"apiVersion":"v1","kind":"X","metadata":{"name":"q"},"spec":{}}}}`, "spec.whole.metadata.oh spec.whole.spec.q"},
	} {
		obj := instance(t, "v1", test.given)
		unknown, err := d.coerce(obj, coerceOptions{report: true})
		if err != nil {
			t.Errorf("%s: %v", test.given, err)
			continue
		}
		d.setDefaults(obj)
		slices.Sort(unknown)
		if got := text(t, withoutMetadata(withoutType(obj.Object))); got != test.want || strings.Join(unknown, " ") != test.unknown {
			t.Errorf("%s: %s, unknown %v, want %s, %s", test.given, got, unknown, test.want, test.unknown)
		}
	}
	bad := instance(t, "v1", "spec: {}")
	bad.Object["metadata"].(map[string]any)["labels"] = "no map"
	if _, err := d.coerce(bad.DeepCopy(), coerceOptions{}); err == nil {
		t.Error("labels that are not a map are accepted")
	}
	if err := d.load(bad); err != nil || bad.GetGeneration() != 1 || bad.GetName() != "x" {
		t.Errorf("repaired is %v, %v", bad, err)
	}
}

func withoutType(content map[string]any) map[string]any {
	delete(content, "kind")
	delete(content, "apiVersion")
	return content
}

// TestConvert converts to the storage version and back.
func TestConvert(t *testing.T) {
	d := defined(t)
	old, now := d.versions["v1beta1"], d.versions["v1"]
	obj := instance(t, "v1beta1", "spec: {a: b, b: c}")
	before := text(t, obj)
	stored, err := old.toStored(obj)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, stored.(*unstructured.Unstructured).Object["spec"]); got != `{"a":"b"}` || stored.GetObjectKind().GroupVersionKind().Version != "v1" {
		t.Errorf("stored is %v", stored)
	}
	if text(t, obj) != before {
		t.Error("converting changed the object")
	}
	same, err := now.fromStored(stored)
	if err != nil || same != stored {
		t.Errorf("reading the storage version made another object, %v", err)
	}
	back, err := old.fromStored(stored)
	if err != nil || back.GetObjectKind().GroupVersionKind().Version != "v1beta1" || back.GetName() != "x" {
		t.Errorf("back is %v, %v", back, err)
	}
	if _, err := d.convertTo(obj, "v3"); err == nil {
		t.Error("converted to a version that does not exist")
	}
}

func TestValidate(t *testing.T) {
	ctx := context.Background()
	v := defined(t).versions["v1"]
	list := func(errs field.ErrorList) string {
		var all []string
		for _, e := range errs {
			all = append(all, e.Error())
		}
		return strings.Join(all, "; ")
	}
	for _, test := range []struct{ given, want string }{
		{"spec: {a: b}", ""},
		{"spec: {}", `spec.a: Required value; <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`},
		{"spec: {a: b, num: -1}", `.spec.num: Invalid value: -1: should be a non-negative integer`},
		{"spec: {a: b, ports: [{name: p}, {name: p}]}", `spec.ports[1]: Duplicate value: {"name":"p"}`},
		{"spec: {a: b, whole: {kind: X}}", `spec.whole.apiVersion: Required value; <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`},
	} {
		if got := list(v.validateCreate(ctx, instance(t, "v1", test.given))); got != test.want {
			t.Errorf("%s: %s, want %s", test.given, got, test.want)
		}
	}
	for _, test := range []struct{ old, now, want string }{
		{"spec: {a: b}", "spec: {a: c}", "spec.a: Invalid value: \"c\": cannot change"},
		{"spec: {a: b, short: too long}", "spec: {a: b, short: too long, num: 2}", ""},
		{"spec: {a: b, short: too long}", "spec: {a: b, short: also long}", "spec.short: Too long: may not be more than 3 bytes; <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"},
	} {
		old, now := instance(t, "v1", test.old), instance(t, "v1", test.now)
		old.SetResourceVersion("1")
		now.SetResourceVersion("1")
		if got := list(v.validateUpdate(ctx, now, old)); got != test.want {
			t.Errorf("%s after %s: %s, want %s", test.now, test.old, got, test.want)
		}
	}
}

func TestGeneration(t *testing.T) {
	ctx := context.Background()
	v := defined(t).versions["v1"]
	old := instance(t, "v1", "spec: {a: b}, status: {num: 1}")
	old.SetGeneration(4)
	for _, test := range []struct {
		now        string
		generation int64
	}{
		{"spec: {a: b}, status: {num: 9}", 4},
		{"spec: {a: c}", 5},
	} {
		now := instance(t, "v1", test.now)
		now.SetGeneration(4)
		v.prepareUpdate(ctx, now, old)
		if got := text(t, now.Object["status"]); got != `{"num":1}` || now.GetGeneration() != test.generation {
			t.Errorf("%s: status %s, generation %d", test.now, got, now.GetGeneration())
		}
	}
	now := instance(t, "v1", "spec: {a: z}, status: {num: 9}")
	prepareStatus(ctx, now, old)
	if text(t, now.Object["spec"]) != `{"a":"b"}` || text(t, now.Object["status"]) != `{"num":9}` || now.GetGeneration() != 4 {
		t.Errorf("status update makes %v", now.Object)
	}
}

func TestTable(t *testing.T) {
	d := defined(t)
	columns, row := d.versions["v1"].table()
	obj := instance(t, "v1", "spec: {a: b, num: 3, ports: [{name: dns, port: 53}, {name: web, port: 80}]}")
	obj.Object["metadata"].(map[string]any)["creationTimestamp"] = time.Now().Add(-5*time.Hour - time.Minute).UTC().Format(time.RFC3339)
	if got := fmt.Sprint(row(obj)); got != "[x b 3 80 5h1m]" && got != "[x b 3 80 5h]" {
		t.Errorf("row %s", got)
	}
	if got := fmt.Sprint(row(instance(t, "v1", "spec: {num: x}"))); got != "[x <nil> <nil> <nil> <nil>]" {
		t.Errorf("row of little %s", got)
	}
	if len(columns) != 5 || columns[3].Priority != 1 || columns[1].Description != "Custom resource definition column (in JSONPath format): .spec.a" {
		t.Errorf("columns %v", columns)
	}
	columns, _ = d.versions["v1beta1"].table()
	if len(columns) != 2 || columns[1].Name != "Age" {
		t.Errorf("default columns %v", columns)
	}
	for _, test := range []struct {
		kind  string
		value any
		want  any
	}{
		{"integer", 2.5, int64(2)}, {"number", int64(2), 2.0}, {"boolean", true, true}, {"boolean", "true", nil},
		{"string", int64(7), "7"}, {"string", map[string]any{"a": int64(1)}, `{"a":1}`}, {"date", "soon", "<invalid>"}, {"integer", nil, nil},
	} {
		if got := formatCell(test.kind, test.value); got != test.want {
			t.Errorf("%v as %s is %v, want %v", test.value, test.kind, got, test.want)
		}
	}
}

func TestFields(t *testing.T) {
	fields, names := defined(t).versions["v1"].fields(true)
	if strings.Join(names, " ") != "metadata.name metadata.namespace spec.a" {
		t.Errorf("names %v", names)
	}
	if set := fields(instance(t, "v1", "spec: {a: b}")); set["spec.a"] != "b" || set["metadata.namespace"] != "ns" {
		t.Errorf("fields %v", set)
	}
	if set := fields(instance(t, "v1", "spec: {}")); !set.Has("spec.a") || set["spec.a"] != "" {
		t.Errorf("fields of a small object: %v", set)
	}
}

func TestModels(t *testing.T) {
	d := defined(t)
	for _, test := range []struct {
		v3     bool
		has    []string
		hasNot []string
	}{
		{true, []string{`"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]`, `"nullable":true`, `"x-kubernetes-validations"`, `"x-kubernetes-selectable-fields":[{"fieldPath":"spec.a"}]`}, []string{"#/definitions/"}},
		{false, []string{`"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`, `"x-kubernetes-group-version-kind":[{"group":"example.com","kind":"Foo","version":"v1"}]`, `"description":"A foo."`}, []string{`"nullable"`, "#/components/"}},
	} {
		m, err := d.versions["v1"].models(test.v3)
		if err != nil {
			t.Fatal(err)
		}
		if m.Name != "com.example.v1.Foo" || m.ListName != "com.example.v1.FooList" {
			t.Errorf("names %s, %s", m.Name, m.ListName)
		}
		for _, part := range test.has {
			if !strings.Contains(string(m.Object), part) {
				t.Errorf("v3 %t: %s is not in %s", test.v3, part, m.Object)
			}
		}
		for _, part := range test.hasNot {
			if strings.Contains(string(m.Object)+string(m.List), part) {
				t.Errorf("v3 %t: %s is in %s", test.v3, part, m.Object)
			}
		}
	}
	if types, err := d.types(); err != nil {
		t.Error(err)
	} else if _, err := types.ObjectToTyped(instance(t, "v1", "spec: {bogus: 1}")); err == nil || !strings.Contains(err.Error(), ".spec.bogus: field not declared in schema") {
		t.Errorf("apply of an unknown field: %v", err)
	}
}

// TestShared reads one object concurrently to let the race detector find data races.
func TestShared(t *testing.T) {
	all := defined(t).resources(false, false)
	obj := instance(t, "v1", "spec: {a: b, num: 1, ports: [{name: web, port: 80}]}, status: {num: 1}")
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 50 {
				for _, res := range all {
					got, err := res.StoredAs.FromStored(obj)
					if err != nil {
						t.Error(err)
						return
					}
					res.Row(got)
					res.Fields(got)
				}
				next := obj.DeepCopy()
				next.SetGeneration(2)
				var current api.Object = obj
				all[0].Update.Prepare(context.Background(), next, current)
				if _, err := all[0].Custom.Coerce(next, true); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
}
