package controlplane

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/host/layout"
)

// TestJoinPhases: the phases of join have the names of kubeadm, and those for control plane nodes
// do nothing on a worker.
func TestJoinPhases(t *testing.T) {
	root := t.TempDir()
	options := func(controlPlane bool) *joinOptions {
		return &joinOptions{root: root, asControlPlane: controlPlane, port: 6443, token: exampleToken, discovery: joindiscovery.Discovery{Endpoint: "127.0.0.1:1", Unsafe: true}}
	}
	for _, p := range joinPhases() {
		words := []string{"phase", p.name}
		if p.parts != nil {
			words = append(words, p.parts[0])
		}
		if cmd, rest, err := NewJoin().Find(words); err != nil || len(rest) > 0 || cmd.Flags().Lookup("discovery-token-ca-cert-hash") == nil {
			t.Errorf("%v: %v, %q", words, err, rest)
		}
		if !p.controlPlaneOnly {
			continue
		}
		if err := p.runWith(t.Context(), options(false), "", io.Discard); err != nil {
			t.Errorf("%s on a worker: %v", p.name, err)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
			t.Errorf("%s on a worker left %v, %v", p.name, left, err)
		}
	}
	// A machine that already has a cluster cannot join another one.
	l := layout.Under(root)
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.Data, "cluster.json"), []byte(`{"nodeName":"n"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range joinPhases() {
		if err := p.runWith(t.Context(), options(true), "all", io.Discard); command.ExitCode(err) != 2 || !strings.Contains(err.Error(), "already has a cluster") {
			t.Errorf("%s on a machine with a cluster: %v", p.name, err)
		}
	}
}

// TestIncompleteJoin: an interrupted join of a control plane node is detected, also while the node
// process runs, until joining completes.
func TestIncompleteJoin(t *testing.T) {
	m := newTestNode(t)
	if isJoinIncomplete(m.layout) {
		t.Error("the node of init has an incomplete join")
	}
	m.joining = true
	if _, err := m.member().setUpAdditional(); err != nil || !isJoinIncomplete(m.layout) {
		t.Errorf("with keys only: %v", err)
	}
	node, err := (&initOptions{}).newNode(m.layout, io.Discard, func(string) bool { return false }, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.setUpNode(); err != nil || !isJoinIncomplete(m.layout) {
		t.Errorf("a phase of init completed the join: %v", err)
	}
	if err := m.saveJoined(); err != nil || isJoinIncomplete(m.layout) {
		t.Errorf("after the join: %v", err)
	}
	m.joining = true
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
	// The user runs join again.
	if os.Geteuid() != 0 {
		t.Skip("join needs root")
	}
	if err := os.MkdirAll(m.layout.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.layout.Etc, "scheduler.conf")); err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSuffix(m.layout.Data, layout.Default().Data)
	var out strings.Builder
	if err := (&joinOptions{root: root}).run(t.Context(), &out); command.ExitCode(err) != 2 || !strings.Contains(err.Error(), "interrupted too early") {
		t.Errorf("second join: %v, %s", err, &out)
	}
}

// TestDiscoveryFile: --discovery-file replaces endpoint, token and hash, and cannot be combined
// with them.
func TestDiscoveryFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.conf")
	const text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fromFile := &joinOptions{}
	if err := fromFile.decode([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery: {file: {kubeConfigPath: " + file + "}, tlsBootstrapToken: " + exampleToken + "}\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    *joinOptions
		want string
	}{
		{fromFile, ""},
		{&joinOptions{discoveryFile: file, token: exampleToken}, ""},
		{&joinOptions{discoveryFile: file}, "specify --tls-bootstrap-token"},
		{&joinOptions{discoveryFile: file, token: exampleToken, discovery: joindiscovery.Discovery{Endpoint: "192.0.2.2:6443"}}, "cannot be combined"},
	} {
		token, err := c.o.complete(t.Context())
		if c.want == "" && (err != nil || token.String() != exampleToken || c.o.discovery.Endpoint != "192.0.2.1:6443") {
			t.Errorf("%+v: %v", c.o.discovery, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v; want %s", err, c.want)
		}
	}
}
