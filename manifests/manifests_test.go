package manifests

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestAddons renders all add-ons and checks that each manifest is the manifest of an add-on.
func TestAddons(t *testing.T) {
	kinds := func(a Addon, inProcess bool) (out []string) {
		objects, err := a.Objects(Values{Image: "hyperkube:v1", DNSAddress: "10.96.0.10", Domain: "cluster.local", NodeDNSDir: "/run/hyperkube/dns", InProcess: inProcess})
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range objects {
			out = append(out, obj.GetKind())
			if obj.GetName() == "" || obj.GetAPIVersion() == "" {
				t.Errorf("unnamed: %v", obj.Object)
			}
		}
		slices.Sort(out)
		return out
	}
	for name, want := range map[string]string{
		"dashboard":  "Deployment Service ServiceAccount",
		"dns":        "ClusterRole ClusterRoleBinding Deployment Service ServiceAccount",
		"gateway":    "ClusterRole ClusterRoleBinding" + strings.Repeat(" CustomResourceDefinition", 10) + " DaemonSet GatewayClass GatewayClass GatewayClass IngressClass Role RoleBinding ServiceAccount",
		"local-path": "StorageClass",
		"metrics":    "APIService APIService ClusterRole ClusterRole ClusterRoleBinding Deployment RoleBinding Service ServiceAccount",
		"logging":    "APIService ClusterRole ClusterRole ClusterRoleBinding DaemonSet Role RoleBinding RoleBinding Secret Service ServiceAccount",
		"network":    "ClusterRole ClusterRoleBinding",
	} {
		a, err := FindAddon(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(kinds(a, false), " "); got != want {
			t.Errorf("%s: kinds %s, want %s", name, got, want)
		}
		if name == "metrics" {
			want = "APIService APIService ClusterRole"
		}
		if got := strings.Join(kinds(a, true), " "); got != want {
			t.Errorf("%s in process: kinds %s, want %s", name, got, want)
		}
	}
	files, err := os.ReadDir("addons")
	if err != nil || len(files) != len(Addons()) {
		t.Errorf("%d files, %d add-ons, %v", len(files), len(Addons()), err)
	}
	if _, err := FindAddon("dsn"); err == nil || !strings.Contains(err.Error(), "available add-ons are: cluster-network-policy, dashboard, dns, gateway, local-path, logging, metrics, network") {
		t.Errorf("unknown name: %v", err)
	}
}
