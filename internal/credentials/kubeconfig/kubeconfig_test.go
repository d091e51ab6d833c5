package kubeconfig

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var ours = Config{Server: "https://127.0.0.1:6443", CA: []byte("ca"), Cert: []byte("cert"), Key: []byte("key")}

const foreign = `apiVersion: v1
kind: Config
preferences: {}
clusters:
- name: prod
  cluster: {server: https://prod.example.org, insecure-skip-tls-verify: true}
users:
- name: me
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}
contexts:
- name: prod
  context: {cluster: prod, user: me, namespace: shop}
current-context: prod
`

func load(t *testing.T, path string) *clientcmdapi.Config {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "scheduler.conf")
	cfg := ours
	cfg.User = "system:kube-scheduler"
	if err := Write(path, cfg); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if before.Mode() != 0o600 {
		t.Errorf("mode %v", before.Mode())
	}
	if err := Write(path, cfg); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("written again")
	}
	rc, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if rc.Host != ours.Server || !rc.DisableCompression || string(rc.CertData) != "cert" {
		t.Errorf("unexpected %+v", rc)
	}
}

func TestMergeAndRemove(t *testing.T) {
	tests := []struct {
		name   string
		file   string // empty: no file
		merges int
		change func(c *clientcmdapi.Config)
		// after is the expected current context after removal. gone is set if the file must be
		// removed.
		after string
		gone  bool
	}{
		{name: "no file", merges: 1, gone: true},
		{name: "foreign file", file: foreign, merges: 1, after: "prod"},
		{name: "merged twice", file: foreign, merges: 2, after: "prod"},
		{name: "current context changed since", file: foreign, merges: 1, change: func(c *clientcmdapi.Config) { c.CurrentContext = "prod" }, after: "prod"},
		{name: "previous context removed", file: foreign, merges: 1, change: func(c *clientcmdapi.Config) { delete(c.Contexts, "prod") }, after: ""},
		{name: "never merged", file: foreign, after: "prod"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := Target{Path: filepath.Join(t.TempDir(), ".kube", "config")}
			if tt.file != "" {
				os.MkdirAll(filepath.Dir(target.Path), 0o755)
				if err := os.WriteFile(target.Path, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range tt.merges {
				if err := target.Merge(ours); err != nil {
					t.Fatal(err)
				}
				if c := load(t, target.Path); c.CurrentContext != "hyperkube" || !c.Clusters["hyperkube"].DisableCompression {
					t.Errorf("unexpected %+v", c)
				}
			}
			if tt.change != nil {
				c := load(t, target.Path)
				tt.change(c)
				if err := clientcmd.WriteToFile(*c, target.Path); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := target.Remove(""); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(target.Path); os.IsNotExist(err) != tt.gone {
				t.Fatalf("file: %v, want removed %v", err, tt.gone)
			}
			if tt.gone {
				return
			}
			c := load(t, target.Path)
			if c.CurrentContext != tt.after || len(c.Clusters) != 1 || len(c.AuthInfos) != 1 || c.AuthInfos["me"].Exec.Command != "login" {
				t.Errorf("unexpected %+v", c)
			}
		})
	}
}

func TestMergeInvalidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	os.WriteFile(path, []byte("{{not yaml"), 0o600)
	if err := (Target{Path: path}).Merge(ours); err == nil {
		t.Error("no error")
	}
	if data, _ := os.ReadFile(path); string(data) != "{{not yaml" {
		t.Error("the file changed")
	}
}

func TestMergeFollowsLinksAndKeepsOwner(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "config")
	os.WriteFile(real, []byte(foreign), 0o600)
	os.Symlink("real", link)
	root := os.Geteuid() == 0
	if root {
		os.Chown(real, 1234, 1235)
	}
	if err := (Target{Path: link}).Merge(ours); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Lstat(link); info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	info, _ := os.Stat(real)
	if st := info.Sys().(*syscall.Stat_t); root && (st.Uid != 1234 || st.Gid != 1235) {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
	if load(t, real).CurrentContext != "hyperkube" {
		t.Error("not merged")
	}
}

func TestUserTarget(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	tests := []struct {
		name  string
		env   map[string]string
		path  string
		owned bool
	}{
		{"home", map[string]string{"HOME": "/home/a"}, "/home/a/.kube/config", false},
		{"KUBECONFIG", map[string]string{"HOME": "/home/a", "KUBECONFIG": ":/x/one:/x/two"}, "/x/one", false},
		{"sudo", map[string]string{"HOME": "/root", "SUDO_UID": "54321", "SUDO_GID": "54321"}, "/root/.kube/config", os.Geteuid() == 0},
	}
	for _, tt := range tests {
		got, err := UserTarget(env(tt.env))
		if err != nil || got.Path != tt.path || (got.Owner != nil) != tt.owned {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
}
