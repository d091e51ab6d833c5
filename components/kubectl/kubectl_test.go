package kubectl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAdapt checks that the user agent is kubectl, whatever the program is called.
func TestAdapt(t *testing.T) {
	c := adaptConfig(&rest.Config{})
	if !strings.HasPrefix(c.UserAgent, "kubectl/v") || !strings.Contains(c.UserAgent, "kubernetes/") {
		t.Errorf("the user agent is %q", c.UserAgent)
	}
	if c.QPS != qps || c.Burst != burst {
		t.Errorf("QPS is %v, burst is %v", c.QPS, c.Burst)
	}
	if c = adaptConfig(&rest.Config{UserAgent: "mine"}); c.UserAgent != "mine" {
		t.Errorf("the user agent is %q", c.UserAgent)
	}
}

// TestAlias checks that arguments added by an alias in a kuberc file reach the command.
func TestAlias(t *testing.T) {
	before := os.Args
	t.Cleanup(func() { os.Args = before })
	dir := t.TempDir()
	config, rc := filepath.Join(dir, "config"), filepath.Join(dir, "kuberc")
	t.Setenv("KUBECONFIG", config)
	aliases := `apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
aliases:
- name: adds
  command: config set-cluster
  appendArgs: [appended]
- name: begins
  command: config set-cluster
  prependArgs: [prepended]
`
	if err := os.WriteFile(rc, []byte(aliases), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"adds"}, {"begins"}, {"config", "set-cluster", "plain"}} {
		if err := run(append(args, "--kuberc="+rc)); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"appended", "prepended", "plain"} {
		if !strings.Contains(string(data), "name: "+name+"\n") {
			t.Errorf("no cluster %s in:\n%s", name, data)
		}
	}
}
