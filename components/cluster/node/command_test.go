package node

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// TestNodeName checks that invalid node names are rejected.
func TestNodeName(t *testing.T) {
	for _, name := range []string{"No_Name", strings.Repeat("a", 64), strings.Repeat("a.", 32) + "b"} {
		if _, err := (&Options{Name: name}).NodeName(); err == nil {
			t.Errorf("node name %q was accepted", name)
		}
	}
}

// TestNodeConfig checks the flags of `node`.
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
	good := func(change func(*Options)) Options {
		o := Options{Kubeconfig: enter, ProxyKubeconfig: enter, Name: "n", Domain: "cluster.local"}
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		o    Options
		want string // part of the error; empty if none is expected
	}{
		{"little", good(func(*Options) {}), ""},
		{"all", good(func(o *Options) {
			o.IP, o.DNS, o.ClientCA = "192.0.2.1", []string{"10.96.0.10"}, set.CA.CertFile
			o.CertFile, o.KeyFile = set.APIServer.CertFile, set.APIServer.KeyFile
		}), ""},
		{"no kubeconfig", good(func(o *Options) { o.Kubeconfig = "" }), "--kubeconfig is required"},
		{"the kubelet's kubeconfig for the proxy", good(func(o *Options) { o.ProxyKubeconfig = "" }), ""},
		{"invalid taints", good(func(o *Options) { o.Taints = []string{"a b"} }), "--register-with-taints"},
		{"missing kubeconfig file", good(func(o *Options) { o.Kubeconfig = "/nowhere" }), "--kubeconfig: "},
		{"addresses of both families", good(func(o *Options) { o.IP = "fd00::1,192.0.2.7" }), ""},
		{"two addresses of one family", good(func(o *Options) { o.IP = "192.0.2.8,192.0.2.7" }), "--node-ip: "},
		{"invalid address", good(func(o *Options) { o.IP = "here" }), "--node-ip: "},
		{"certificate without key", good(func(o *Options) { o.CertFile = set.APIServer.CertFile }), "must be set together"},
		{"invalid certificate", good(func(o *Options) { o.CertFile, o.KeyFile = empty, empty }), "certificate"},
		{"invalid client CA", good(func(o *Options) { o.ClientCA = empty }), "no certificate in"},
	} {
		cfg, err := c.o.config(layout.Under(dir), slog.Default())
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

// TestDescribeBootstrap checks that a wait for the client certificate reports an invalid token.
func TestDescribeBootstrap(t *testing.T) {
	valid := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !valid {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	o := Options{BootstrapKubeconfig: filepath.Join(t.TempDir(), "bootstrap.conf")}
	if err := kubeconfig.Write(o.BootstrapKubeconfig, kubeconfig.Config{Server: server.URL, Token: "abcdef.0123456789abcdef"}); err != nil {
		t.Fatal(err)
	}
	if got := o.describeBootstrap(t.Context()); !strings.Contains(got, "bootstrap token is invalid") {
		t.Errorf("with an invalid token: %q", got)
	}
	valid = true
	if got := o.describeBootstrap(t.Context()); got != "" {
		t.Errorf("with a valid token: %q", got)
	}
	server.Close()
	if got := o.describeBootstrap(t.Context()); !strings.Contains(got, "connection refused") {
		t.Errorf("without a server: %q", got)
	}
	if got := (&Options{}).describeBootstrap(t.Context()); got != "" {
		t.Errorf("without a token: %q", got)
	}
}
