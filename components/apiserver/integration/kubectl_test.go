package integration

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"hyperkube/components/apiserver"
	"hyperkube/internal/credentials/pki"
)

// kubectl runs a released kubectl against a server over TLS.
type kubectl struct {
	t      *testing.T
	binary string
	config string
}

func newKubectl(t *testing.T, cfg apiserver.Config) (*kubectl, *apiserver.Server) {
	t.Helper()
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl")
	}
	dir := t.TempDir()
	set, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Config{NodeAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = listen(t)
	cfg.CertFile = filepath.Join(set.Dir, "apiserver.crt")
	cfg.KeyFile = filepath.Join(set.Dir, "apiserver.key")
	cfg.ClientCAs = set.CA.Pool()
	pair, err := set.CA.NewPair(pki.Client("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(set.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, cfg)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + cfg.Listener.Addr().String(), CertificateAuthorityData: ca}
	kc.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}
	kc.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kc.CurrentContext = "x"
	file := filepath.Join(dir, "config")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	return &kubectl{t, binary, file}, s
}

// run runs kubectl, which must succeed, and returns its output.
func (k *kubectl) run(stdin string, args ...string) string {
	k.t.Helper()
	out, err := k.try(stdin, args...)
	if err != nil {
		k.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (k *kubectl) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command(k.binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.config, "HOME="+filepath.Dir(k.config), "KUBE_EDITOR=sed -i s/one/two/")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestKubectl(t *testing.T) {
	k, _ := newKubectl(t, apiserver.Config{})
	for _, step := range []struct {
		args  string
		stdin string
		want  string
	}{
		{"create namespace shop", "", "namespace/shop created"},
		{"get ns", "", "shop   Active"},
		{"create configmap c -n shop --from-literal=a=one", "", "configmap/c created"},
		{"get cm -n shop", "", "NAME   DATA   AGE"},
		{"get cm c -n shop -o yaml", "", "a: one"},
		{"edit cm c -n shop", "", "configmap/c edited"},
		{"get cm c -n shop -o jsonpath={.data.a}", "", "two"},
		{"apply -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: d\n  namespace: shop\ndata:\n  x: \"1\"\n", "configmap/d created"},
		{"apply -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: d\n  namespace: shop\ndata:\n  x: \"2\"\n", "configmap/d configured"},
		{"apply --server-side --force-conflicts -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: d\n  namespace: shop\ndata:\n  x: \"3\"\n", "configmap/d serverside-applied"},
		{"label cm d -n shop l=m", "", "configmap/d labeled"},
		{"get cm -n shop -l l=m --no-headers", "", "d     1"},
		{"get cm -A --chunk-size=1 --no-headers", "", "shop   d"},
		{"delete cm c d -n shop", "", `configmap "c" deleted`},
		{"api-resources", "", "configmaps"},
		{"get --raw /readyz?verbose", "", "[+]etcd ok"},
		{"version", "", "Server Version: v1.37"},
	} {
		out := k.run(step.stdin, strings.Fields(step.args)...)
		if !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s:\n%s\nwithout %q", step.args, out, step.want)
		}
	}
}
