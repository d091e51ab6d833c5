package manifests

import "testing"

func TestAddons(t *testing.T) {
	objects, err := Addons(Values{Image: "hyperkube:v1", DNSAddress: "10.96.0.10", Domain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, obj := range objects {
		kinds[obj.GetKind()]++
		if obj.GetName() == "" || obj.GetAPIVersion() == "" {
			t.Errorf("unnamed: %v", obj.Object)
		}
	}
	if kinds["Deployment"] != 1 || kinds["Service"] != 1 || kinds["StorageClass"] != 1 || len(objects) != 8 {
		t.Errorf("kinds %v", kinds)
	}
}
