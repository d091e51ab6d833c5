package version2

import (
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

func TestWithoutDefaults(t *testing.T) {
	count := spec.Int32Property().WithDefault(3)
	plain := spec.StringProperty()
	given := &spec.Schema{SchemaProps: spec.SchemaProps{
		Type:       spec.StringOrArray{"object"},
		Properties: map[string]spec.Schema{"count": *count, "plain": *plain, "list": *spec.ArrayProperty(count)},
	}}
	got := WithoutDefaults(given)
	for name, s := range map[string]spec.Schema{"count": got.Properties["count"], "items": *got.Properties["list"].Items.Schema} {
		if s.Default != nil || !s.Type.Contains("integer") {
			t.Errorf("%s: %v with default %v", name, s.Type, s.Default)
		}
	}
	if !got.Properties["plain"].Type.Contains("string") {
		t.Errorf("plain: %v", got.Properties["plain"].Type)
	}
	if given.Properties["count"].Default == nil || given.Properties["list"].Items.Schema.Default == nil {
		t.Error("the argument was modified")
	}
}
