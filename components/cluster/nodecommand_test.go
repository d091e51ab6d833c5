package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// TestNodeConfig reads the flags of `node`.
func TestNodeConfig(t *testing.T) {
	dir := t.TempDir()
	set, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Config{NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	enter := filepath.Join(dir, "kubeconfig")
	if err := kubeconfig.Write(enter, kubeconfig.Config{Server: "https://127.0.0.1:1", CA: set.CA.CertPEM}); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := func(change func(*nodeOptions)) nodeOptions {
		o := nodeOptions{Kubeconfig: enter, ProxyKubeconfig: enter, Name: "n", Domain: "cluster.local"}
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		o    nodeOptions
		want string // in the error; empty: none
	}{
		{"little", good(func(*nodeOptions) {}), ""},
		{"all", good(func(o *nodeOptions) {
			o.IP, o.DNS, o.ClientCA = "192.0.2.1", []string{"10.96.0.10"}, set.CA.CertFile
			o.CertFile, o.KeyFile = set.APIServer.CertFile, set.APIServer.KeyFile
		}), ""},
		{"no kubeconfig", good(func(o *nodeOptions) { o.Kubeconfig = "" }), "--kubeconfig is required"},
		{"the kubelet's kubeconfig for the proxy", good(func(o *nodeOptions) { o.ProxyKubeconfig = "" }), ""},
		{"taints that are none", good(func(o *nodeOptions) { o.Taints = []string{"a b"} }), "--register-with-taints"},
		{"kubeconfig not there", good(func(o *nodeOptions) { o.Kubeconfig = "/nowhere" }), "--kubeconfig: "},
		{"addresses of both families", good(func(o *nodeOptions) { o.IP = "fd00::1,192.0.2.7" }), ""},
		{"two addresses of a family", good(func(o *nodeOptions) { o.IP = "192.0.2.8,192.0.2.7" }), "--node-ip: "},
		{"no address", good(func(o *nodeOptions) { o.IP = "here" }), "--node-ip: "},
		{"certificate without key", good(func(o *nodeOptions) { o.CertFile = set.APIServer.CertFile }), "go together"},
		{"no certificate", good(func(o *nodeOptions) { o.CertFile, o.KeyFile = empty, empty }), "certificate"},
		{"no authority", good(func(o *nodeOptions) { o.ClientCA = empty }), "no certificate in"},
	} {
		cfg, err := c.o.config(layout.Under(dir))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
			if cfg.Kubelet == nil || cfg.Proxy == nil || c.o.IP != "" && fmt.Sprint(cfg.Addresses) != "["+strings.ReplaceAll(c.o.IP, ",", " ")+"]" ||
				(cfg.Certificate != nil) != (c.o.CertFile != "") || (cfg.ClientCA != nil) != (c.o.ClientCA != "") {
				t.Errorf("%s: %+v", c.name, cfg)
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
