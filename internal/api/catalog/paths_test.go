package catalog

import "testing"

// TestStoragePaths holds where objects are in etcd: where upstream's API server
// has them, so that one can take over from the other.
func TestStoragePaths(t *testing.T) {
	irregular := map[string]string{
		"nodes":                       "minions",
		"services":                    "services/specs",
		"endpoints":                   "services/endpoints",
		"replicationcontrollers":      "controllers",
		"ingresses.networking.k8s.io": "ingress",
		"customresourcedefinitions.apiextensions.k8s.io": "apiextensions.k8s.io/customresourcedefinitions",
		"apiservices.apiregistration.k8s.io":             "apiregistration.k8s.io/apiservices",
	}
	stored := map[string]string{}
	for _, r := range Resources() {
		if r.Review || r.GVR().GroupResource().String() == "componentstatuses" {
			continue
		}
		want := r.Plural
		if w, ok := irregular[r.GroupResource().String()]; ok {
			want = w
		}
		if r.StoragePath != want {
			t.Errorf("%s is in %s, not in %s", r.GVR(), r.StoragePath, want)
		}
		if other, ok := stored[r.StoragePath]; ok && r.StoredAs == nil {
			t.Errorf("%s has %s, as %s does", r.GVR(), r.StoragePath, other)
		}
		if r.StoredAs == nil {
			stored[r.StoragePath] = r.GVR().String()
		}
	}
	for _, r := range Resources() {
		if r.StoredAs != nil && stored[r.StoragePath] == "" {
			t.Errorf("%s: nothing else is in %s", r.GVR(), r.StoragePath)
		}
	}
}
