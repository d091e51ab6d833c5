package customresource

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzRule validates arbitrary objects with arbitrary rules. No rule may panic, and the cost limit
// must bound its run time.
func FuzzRule(f *testing.F) {
	f.Add("self == oldSelf", `{"spec":{"a":"b"}}`)
	f.Add("[1,2,3].all(x, [1,2,3].all(y, [1,2,3].all(z, x + y + z > 0)))", `{"spec":{"a":"b"}}`)
	f.Add("self.matches('^(a+)+$')", `{"spec":{"a":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"}}`)
	f.Add("(self + self + self + self).size() > 0", `{"spec":{"a":null}}`)
	f.Add("self.replace('', 'aaaaaaaaaaaa').replace('', 'aaaaaaaaaaaa').size() > 0", `{"spec":{"a":""}}`)
	f.Add(strings.Repeat("(", 300)+"self"+strings.Repeat(")", 300)+" == ''", `{"spec":{"a":1e999}}`)
	definition := parse(f, example)
	f.Fuzz(func(_ *testing.T, rule, object string) {
		crd := definition.DeepCopy()
		spec := crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"]
		spec.Properties["a"].XValidations[0].Rule = rule
		d, err := newDefinition(crd, nil)
		if err != nil {
			return
		}
		obj := &unstructured.Unstructured{}
		if obj.UnmarshalJSON([]byte(`{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"x","namespace":"n"},`+strings.TrimPrefix(object, "{"))) != nil {
			return
		}
		v := d.versions["v1"]
		_ = v.validateCreate(context.Background(), obj.DeepCopy())
		old := obj.DeepCopy()
		old.SetResourceVersion("1")
		obj.SetResourceVersion("1")
		_ = v.validateUpdate(context.Background(), obj, old)
	})
}
