package cluster

import (
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
		o := nodeOptions{kubeconfig: enter, proxyKubeconfig: enter, name: "n", domain: "cluster.local"}
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
			o.ip, o.dns, o.clientCA = "192.0.2.1", []string{"10.96.0.10"}, set.CA.CertFile
			o.certFile, o.keyFile = set.APIServer.CertFile, set.APIServer.KeyFile
		}), ""},
		{"no kubeconfig", good(func(o *nodeOptions) { o.kubeconfig = "" }), "--kubeconfig is required"},
		{"no kubeconfig of the proxy", good(func(o *nodeOptions) { o.proxyKubeconfig = "" }), "--proxy-kubeconfig is required"},
		{"kubeconfig not there", good(func(o *nodeOptions) { o.kubeconfig = "/nowhere" }), "--kubeconfig: "},
		{"no address", good(func(o *nodeOptions) { o.ip = "here" }), "--node-ip: "},
		{"certificate without key", good(func(o *nodeOptions) { o.certFile = set.APIServer.CertFile }), "go together"},
		{"no certificate", good(func(o *nodeOptions) { o.certFile, o.keyFile = empty, empty }), "certificate"},
		{"no authority", good(func(o *nodeOptions) { o.clientCA = empty }), "no certificate in"},
	} {
		cfg, err := c.o.config(layout.Under(dir))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
			if cfg.Kubelet == nil || cfg.Proxy == nil || cfg.Address.IsValid() != (c.o.ip != "") ||
				(cfg.Certificate != nil) != (c.o.certFile != "") || (cfg.ClientCA != nil) != (c.o.clientCA != "") {
				t.Errorf("%s: %+v", c.name, cfg)
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
