package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

// rounds is the number of random objects per kind.
const rounds = 8

// filler creates random objects that can be encoded without loss.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.35).NumElements(0, 2).MaxDepth(14).Funcs(
		func(v *string, c randfill.Continue) {
			words := []string{"", "a", "a.b/c", "Ünï", "*", "system:x", "10.0.0.1", "-1", "web", "kubernetes.io/x", "\t"}
			*v = words[c.Intn(len(words))]
		},
		func(v *int32, c randfill.Continue) { *v = int32(c.Intn(2000)) - 100 },
		func(v *int64, c randfill.Continue) { *v = int64(c.Intn(2000)) - 100 },
		func(v *resource.Quantity, c randfill.Continue) {
			*v = *resource.NewMilliQuantity(int64(c.Intn(9000))-1000, resource.DecimalSI)
			_ = v.String() // sets the cached string, as decoding does
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			if *v = intstr.FromInt32(int32(c.Intn(9)) - 1); c.Bool() {
				*v = intstr.FromString([]string{"25%", "http", "", "200%"}[c.Intn(4)])
			}
		},
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(int64(c.Intn(9)), 0) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.NewMicroTime(time.Unix(int64(c.Intn(9)), 1000))
		},
		func(v *metav1.Duration, c randfill.Continue) { v.Duration = time.Duration(c.Intn(9)) * time.Second },
		func(v *runtime.RawExtension, c randfill.Continue) {
			v.Object, v.Raw = nil, []byte([]string{`{"a":1}`, `{"kind":"x"}`}[c.Intn(2)])
		},
		func(v *apiextensionsv1.JSON, _ randfill.Continue) { v.Raw = []byte(`{"a":1}`) },
		func(v *apiextensionsv1.JSONSchemaProps, c randfill.Continue) { c.Fill(&v.Type) },
		func(v *[]metav1.ManagedFieldsEntry, _ randfill.Continue) { *v = nil },
		func(v *metav1.TypeMeta, _ randfill.Continue) { *v = metav1.TypeMeta{} },
	)
}

// forRandomObjects calls f for random objects of every kind.
func forRandomObjects(t *testing.T, f func(t *testing.T, r *api.Resource, obj api.Object)) {
	t.Helper()
	for _, r := range Resources() {
		t.Run(r.GVK().String(), func(t *testing.T) {
			fill := filler(1)
			for i := range rounds {
				obj := r.New()
				if i > 0 { // the first one is empty
					fill.Fill(obj)
				}
				f(t, r, obj)
			}
		})
	}
}

func encode(t *testing.T, obj any) []byte {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func same(t *testing.T, what string, got, want api.Object) {
	t.Helper()
	if !apiequality.Semantic.DeepEqual(got, want) {
		t.Fatalf("%s:\n%s\nwas\n%s", what, encode(t, got), encode(t, want))
	}
}

// TestRoundTrips converts objects to all encodings and versions and back.
func TestRoundTrips(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, r := range Resources() {
		scheme.AddKnownTypeWithName(r.GVK(), r.New())
	}
	stored := protobuf.NewSerializer(scheme, scheme)
	forRandomObjects(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		data := encode(t, obj)
		back := r.New()
		if err := json.Unmarshal(data, back); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		same(t, "JSON", back, obj)

		text, err := yaml.JSONToYAML(data)
		if err != nil {
			t.Fatal(err)
		}
		back = r.New()
		if err := yaml.UnmarshalStrict(text, back); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		same(t, "YAML", back, obj)

		if _, ok := obj.(interface{ Marshal() ([]byte, error) }); ok {
			gvk := r.GVK()
			typed := obj.DeepCopyObject()
			typed.GetObjectKind().SetGroupVersionKind(gvk)
			var buf bytes.Buffer
			if err := stored.Encode(typed, &buf); err != nil {
				t.Fatal(err)
			}
			into := r.New()
			if _, _, err := stored.Decode(buf.Bytes(), &gvk, into); err != nil {
				t.Fatal(err)
			}
			into.GetObjectKind().SetGroupVersionKind(r.GVK().GroupVersion().WithKind(""))
			into.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
			same(t, "protobuf", into, obj)
		}
		if s := r.StoredAs; s != nil {
			there, err := s.ToStored(obj)
			if err != nil {
				return // the object cannot be stored
			}
			if _, err := s.FromStored(there); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestPatches converts one object to another with each type of patch.
func TestPatches(t *testing.T) {
	forRandomObjects(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		from := encode(t, obj)
		next := obj.DeepCopyObject().(api.Object)
		next.SetLabels(map[string]string{"a": "b"})
		next.SetFinalizers([]string{"x.io/f"})
		next.SetAnnotations(nil)
		to := encode(t, next)
		check := func(what string, patched []byte, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			back := r.New()
			if err := json.Unmarshal(patched, back); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			same(t, what, back, next)
		}
		merge, err := jsonpatch.CreateMergePatch(from, to)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := jsonpatch.MergePatch(from, merge)
		check("merge patch", patched, err)

		// Lists with elements without a merge key, such as containers without names, cannot be
		// compared this way.
		if strategic, err := strategicpatch.CreateTwoWayMergePatch(from, to, r.New()); err == nil {
			patched, err = strategicpatch.StrategicMergePatch(from, strategic, r.New())
			check("strategic merge patch", patched, err)
		}

		ops := `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"add","path":"/metadata/finalizers","value":["x.io/f"]},
			{"op":"add","path":"/metadata/annotations","value":{}},{"op":"remove","path":"/metadata/annotations"}]`
		patch, err := jsonpatch.DecodePatch([]byte(ops))
		if err != nil {
			t.Fatal(err)
		}
		patched, err = patch.Apply(from)
		check("JSON patch", patched, err)
	})
}

// TestDefaultingIsIdempotent checks that defaulting is idempotent, because objects are defaulted on
// each read.
func TestDefaultingIsIdempotent(t *testing.T) {
	forRandomObjects(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		r.Default(obj)
		again := obj.DeepCopyObject().(api.Object)
		r.Default(again)
		same(t, "defaulted again", again, obj)
	})
}

// TestNoPanics applies all operations of the API server to random objects.
func TestNoPanics(t *testing.T) {
	ctx := context.Background()
	forRandomObjects(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		step := "default"
		defer func() {
			if p := recover(); p != nil {
				t.Fatalf("%s: %v\n%s", step, p, encode(t, obj))
			}
		}()
		other := r.New()
		filler(7).Fill(other)
		for _, raw := range []bool{true, false} {
			a, b := obj.DeepCopyObject().(api.Object), other.DeepCopyObject().(api.Object)
			if !raw {
				r.Default(a)
				r.Default(b)
			}
			step = "columns"
			if cells := r.Row(a); !r.Review && len(cells) != len(r.Columns) {
				t.Fatalf("%d cells in %d columns", len(cells), len(r.Columns))
			}
			step = "fields"
			_ = r.Fields(a)
			if r.Scale != nil {
				step = "scale"
				_, _, _ = r.Scale.Get(a)
			}
			if !raw {
				// Only defaulted objects are validated.
				step = "create"
				c := a.DeepCopyObject().(api.Object)
				r.PrepareCreate(ctx, c)
				_ = formatAll(r.Validate(ctx, c))
				_ = r.Warnings(ctx, c, nil)
				step = "update"
				u := b.DeepCopyObject().(api.Object)
				r.Update.Prepare(ctx, u, a)
				_ = formatAll(r.Update.Validate(ctx, u, a))
				_ = r.Warnings(ctx, u, a)
				for name, view := range r.Views {
					step = name
					v := b.DeepCopyObject().(api.Object)
					view.Prepare(ctx, v, a)
					_ = formatAll(view.Validate(ctx, v, a))
				}
				if r.BeforeDelete != nil {
					step = "delete"
					_ = r.BeforeDelete(ctx, a.DeepCopyObject().(api.Object), &metav1.DeleteOptions{})
				}
				if r.Retain != nil {
					_ = r.Retain(a)
				}
			}
		}
	})
}

// formatAll formats errors, because formatting could also panic.
func formatAll[E error](errs []E) []string {
	var all []string
	for _, e := range errs {
		all = append(all, fmt.Sprint(e))
	}
	return all
}
