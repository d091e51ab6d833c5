package masters

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/layout"
)

// TestJoinPhases: the parts of join have kubeadm's names, and those of masters do nothing on
// a machine that becomes none.
func TestJoinPhases(t *testing.T) {
	root := t.TempDir()
	given := func(master bool) *joinOptions {
		return &joinOptions{root: root, asMaster: master, port: 6443, token: exampleToken, discovery: trust.Discovery{Endpoint: "127.0.0.1:1", Unsafe: true}}
	}
	for _, p := range joinPhases() {
		words := []string{"phase", p.name}
		if p.parts != nil {
			words = append(words, p.parts[0])
		}
		if cmd, rest, err := NewJoin().Find(words); err != nil || len(rest) > 0 || cmd.Flags().Lookup("discovery-token-ca-cert-hash") == nil {
			t.Errorf("%v: %v, %q", words, err, rest)
		}
		if !p.masters {
			continue
		}
		if err := p.runWith(t.Context(), given(false), "", io.Discard); err != nil {
			t.Errorf("%s on a worker: %v", p.name, err)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
			t.Errorf("%s on a worker leaves %v, %v", p.name, left, err)
		}
	}
	// A machine that has a cluster of its own joins none.
	l := layout.Under(root)
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.Data, "cluster.json"), []byte(`{"nodeName":"n"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range joinPhases() {
		if err := p.runWith(t.Context(), given(true), "all", io.Discard); command.ExitCode(err) != 2 || !strings.Contains(err.Error(), "a cluster of its own") {
			t.Errorf("%s where there is a cluster: %v", p.name, err)
		}
	}
}

// TestHalfMaster: a machine whose join as a master was cut short is known, also while its node
// runs, and is no more when it is done.
func TestHalfMaster(t *testing.T) {
	m := testMaster(t)
	if isHalfMaster(m.layout) {
		t.Error("the master of init is half a further one")
	}
	m.joining = true
	if _, err := m.startKeys(); err != nil || !isHalfMaster(m.layout) {
		t.Errorf("with keys alone: %v", err)
	}
	again, err := (&initOptions{}).again(m.layout, io.Discard, func(string) bool { return false }, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.refound(); err != nil || !isHalfMaster(m.layout) {
		t.Errorf("a phase of init has ended joining: %v", err)
	}
	if err := m.joined(); err != nil || isHalfMaster(m.layout) {
		t.Errorf("when it is done: %v", err)
	}
	m.joining = true
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	// Join is typed again.
	if os.Geteuid() != 0 {
		t.Skip("only root may join")
	}
	if err := os.MkdirAll(m.layout.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.layout.Etc, "scheduler.conf")); err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSuffix(m.layout.Data, layout.Default().Data)
	var out strings.Builder
	if err := (&joinOptions{root: root}).run(t.Context(), &out); command.ExitCode(err) != 2 || !strings.Contains(err.Error(), "did not come far enough") {
		t.Errorf("again: %v, %s", err, &out)
	}
}

// TestDiscoveryFile: a file takes the place of endpoint, token and hash, and of all of them.
func TestDiscoveryFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.conf")
	const text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	given := &joinOptions{}
	if err := given.decode([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery: {file: {kubeConfigPath: " + file + "}, tlsBootstrapToken: " + exampleToken + "}\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    *joinOptions
		want string
	}{
		{given, ""},
		{&joinOptions{discoveryFile: file, token: exampleToken}, ""},
		{&joinOptions{discoveryFile: file}, "give --tls-bootstrap-token"},
		{&joinOptions{discoveryFile: file, token: exampleToken, discovery: trust.Discovery{Endpoint: "192.0.2.2:6443"}}, "not by both"},
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
