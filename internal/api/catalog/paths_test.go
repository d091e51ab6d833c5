package catalog

import "testing"

// TestStoragePaths checks that the etcd keys of objects are those of upstream, so that the API
// servers can replace each other.
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
			t.Errorf("%s is stored in %s, not in %s", r.GVR(), r.StoragePath, want)
		}
		if other, ok := stored[r.StoragePath]; ok && r.StoredAs == nil {
			t.Errorf("%s has the path %s, like %s", r.GVR(), r.StoragePath, other)
		}
		if r.StoredAs == nil {
			stored[r.StoragePath] = r.GVR().String()
		}
	}
	for _, r := range Resources() {
		if r.StoredAs != nil && stored[r.StoragePath] == "" {
			t.Errorf("%s: no other kind is stored in %s", r.GVR(), r.StoragePath)
		}
	}
}
