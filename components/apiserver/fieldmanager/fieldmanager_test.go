package fieldmanager

import (
	"testing"

	"hyperkube/internal/api/catalog"
)

// TestSchemas holds that every kind has a schema, without which its managed
// fields would silently not be kept.
func TestSchemas(t *testing.T) {
	m := New()
	types, err := m.types()
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range catalog.Resources() {
		if res.Review {
			continue
		}
		obj := res.New()
		obj.GetObjectKind().SetGroupVersionKind(res.GVK())
		if _, err := types.ObjectToTyped(obj); err != nil {
			t.Errorf("%s: %v", res.GVK(), err)
		}
		for view := range res.Views {
			if _, err := m.For(res, view); err != nil {
				t.Errorf("%s/%s: %v", res.GVR(), view, err)
			}
		}
	}
}

func TestName(t *testing.T) {
	for _, tc := range []struct{ manager, agent, want string }{
		{"me", "kubectl/v1", "me"},
		{"", "kubectl/v1.32 (linux)", "kubectl"},
		{"", "", ""},
		{"", "a\x00b/1", "ab"},
	} {
		if got := Name(tc.manager, tc.agent); got != tc.want {
			t.Errorf("%q %q: %q", tc.manager, tc.agent, got)
		}
	}
}
