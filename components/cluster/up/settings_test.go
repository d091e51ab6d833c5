package up

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/components/cluster/node"
	"hyperkube/components/network"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// TestValidateConfig checks the errors of values that are valid for the type of a flag, but not for the cluster.
func TestValidateConfig(t *testing.T) {
	const head = "apiVersion: hyperkube.io/v1alpha1\nkind: UpConfiguration\n"
	dir := t.TempDir()
	t.Chdir(dir) // a relative path of the file is accepted
	for text, want := range map[string]string{
		"nodeName: a\nnodes: 2\nclusterCIDR: [10.1.0.0/16, 'fd00:1::/56']\nserviceCIDR: [10.2.0.0/16]\npodNetwork: vxlan\nwith: [metrics]": "",
		"nodeName: A_b":                "c.yaml:3: nodeName: invalid node name",
		"proxyMode: ipvs":              `c.yaml:3: proxyMode: unsupported value "ipvs"`,
		"nodes: -1":                    "c.yaml:3: nodes: must be from 1 to",
		"clusterCIDR: [10.0.0.0/33]":   "c.yaml:3: clusterCIDR: invalid CIDR",
		"\nserviceCIDR: [10.0.0.0/33]": "c.yaml:4: serviceCIDR: invalid CIDR",
		"loadBalancerPool: [192.0.2.0/28, 2001:db8::1-2001:db8::9]": "",
		"loadBalancerPool: [192.0.2.9]\ncloudProvider: external":    "c.yaml:3: loadBalancerPool: with --cloud-provider=external",
		"loadBalancerPool: [192.0.2.9/28]":                          "c.yaml:3: loadBalancerPool: \"192.0.2.9/28\" is not a CIDR",
		"podNetwork: flannel":                                       "c.yaml:3: podNetwork: unknown pod network mode",
		"with: [traefik]":                                           `c.yaml:3: with: unknown add-on "traefik"`,
		"auditLogPath: a":                                           "c.yaml:3: auditLogPath: \"a\" is not an absolute path",
		"kubeletConfig: /missing":                                   "/missing",
		"nodes: -1\npodNetwork: flannel":                            "c.yaml:4: podNetwork",
	} {
		if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := ValidateConfig(layout.Under(dir), "c.yaml")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestLoadSettings checks that flags take precedence over files, and that paths on the command line become absolute.
func TestLoadSettings(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("c.yaml", []byte("apiVersion: hyperkube.io/v1alpha1\nkind: UpConfiguration\nnodeName: a\nnodes: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &upOptions{}
	flags := newCommand(o).Flags()
	if err := flags.Parse([]string{"--config=c.yaml", "--nodes=3"}); err != nil {
		t.Fatal(err)
	}
	args, err := o.loadSettings(flags, layout.Under(dir))
	if err != nil || o.nodeName != "a" || o.nodes != 3 || len(args) != 1 || args[0] != "--config="+filepath.Join(dir, "c.yaml") {
		t.Errorf("%q, %d, %q, %v", o.nodeName, o.nodes, args, err)
	}
	changed, err := o.changedKinds(flags, layout.Under(dir))
	if err != nil || len(changed) != 0 {
		t.Errorf("settings of the first start changed the running cluster: %q, %v", changed, err)
	}
}

// TestOutdatedNode checks for which settings a running additional node is replaced.
func TestOutdatedNode(t *testing.T) {
	l := layout.Under(t.TempDir())
	f := nodeManager{layout: l, desired: additionalNodes{Network: network.VXLAN}, apiServer: netip.MustParseAddrPort("192.0.2.1:7443")}
	for _, c := range []struct {
		name    string
		options node.Options
		server  string
		want    bool
	}{
		{"same", node.Options{Network: "vxlan"}, "https://192.0.2.1:7443", false},
		{"network", node.Options{}, "https://192.0.2.1:7443", true},
		{"seccomp", node.Options{Network: "vxlan", NoSeccompDefault: true}, "https://192.0.2.1:7443", true},
		{"proxy mode", node.Options{Network: "vxlan", ProxyMode: packetfilter.NFTables}, "https://192.0.2.1:7443", true},
		{"port", node.Options{Network: "vxlan"}, "https://192.0.2.1:6443", true},
	} {
		if err := c.options.Save(l.Numbered(1)); err != nil {
			t.Fatal(err)
		}
		text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: '" + c.server + "'}}]\n"
		if err := os.WriteFile(filepath.Join(l.Numbered(1).Data, "kubelet.conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := f.isOutdated(nil, 1); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
