package fieldmanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// randomContent returns content for tests, some of whose maps are large.
func randomContent(depth int) any {
	switch n := rand.IntN(6); {
	case depth > 0 && n < 3:
		out := map[string]any{}
		size := rand.IntN(4)
		if rand.IntN(3) == 0 {
			size = largeMap + rand.IntN(10)
			depth = 1
		}
		for range size {
			out[fmt.Sprint("key", rand.IntN(2*largeMap))] = randomContent(depth - 1)
		}
		return out
	case depth > 0 && n == 3:
		return []any{randomContent(depth - 1), randomContent(depth - 1)}
	case n == 4:
		return int64(rand.IntN(3))
	}
	return "value"
}

// TestOrdered: objects that visit their keys in order have the same fields, and the same differences.
func TestOrdered(t *testing.T) {
	plain := managedfields.NewDeducedTypeConverter()
	for range 200 {
		objects := make([]*unstructured.Unstructured, 2)
		for i := range objects {
			objects[i] = &unstructured.Unstructured{Object: map[string]any{"spec": randomContent(3), "status": randomContent(3)}}
		}
		var fields, differences, merged [2]string
		for i, types := range []managedfields.TypeConverter{plain, ordered{plain}} {
			one, err := types.ObjectToTyped(objects[0])
			if err != nil {
				t.Fatal(err)
			}
			two, err := types.ObjectToTyped(objects[1])
			if err != nil {
				t.Fatal(err)
			}
			set, err := one.ToFieldSet()
			if err != nil {
				t.Fatal(err)
			}
			compared, err := one.Compare(two)
			if err != nil {
				t.Fatal(err)
			}
			sum, err := one.Merge(two)
			if err != nil {
				t.Fatal(err)
			}
			fields[i], differences[i], merged[i] = set.String(), compared.String(), mustJSON(t, sum.AsValue().Unstructured())
		}
		if fields[0] != fields[1] || differences[0] != differences[1] || merged[0] != merged[1] {
			t.Fatalf("different results for %v and %v: %v %v %v", objects[0], objects[1], fields, differences, merged)
		}
	}
}

// TestOrderOfLargeMaps: what is inserted into sorted sets comes in order.
func TestOrderOfLargeMaps(t *testing.T) {
	large := map[string]any{}
	for i := range 10 * largeMap {
		large[fmt.Sprintf("key-%06d", i)] = "value"
	}
	types := ordered{managedfields.NewDeducedTypeConverter()}
	of := func(spec map[string]any) value.Map {
		obj, err := types.ObjectToTyped(&unstructured.Unstructured{Object: map[string]any{"list": []any{map[string]any{"spec": spec}}}})
		if err != nil {
			t.Fatal(err)
		}
		list, _ := obj.AsValue().AsMap().Get("list")
		spec1, _ := list.AsList().At(0).AsMap().Get("spec")
		return spec1.AsMap()
	}
	full, empty := of(large), of(map[string]any{})
	for name, visit := range map[string]func(func(string)){
		"iterate": func(add func(string)) {
			full.Iterate(func(key string, _ value.Value) bool { add(key); return true })
		},
		"compare with another": func(add func(string)) {
			full.Zip(of(large), value.Unordered, func(key string, _, _ value.Value) bool { add(key); return true })
		},
		"compare with nothing": func(add func(string)) {
			full.Zip(empty, value.Unordered, func(key string, _, _ value.Value) bool { add(key); return true })
		},
		"compare nothing with it": func(add func(string)) {
			empty.Zip(full, value.Unordered, func(key string, _, _ value.Value) bool { add(key); return true })
		},
		"compare a merged one": func(add func(string)) {
			empty.Zip(value.NewValueInterface(large).AsMap(), value.Unordered, func(key string, _, _ value.Value) bool { add(key); return true })
		},
	} {
		var keys []string
		visit(func(key string) { keys = append(keys, key) })
		if len(keys) != len(large) || !slices.IsSorted(keys) {
			t.Errorf("%s: %d keys, sorted %v", name, len(keys), slices.IsSorted(keys))
		}
	}
}
