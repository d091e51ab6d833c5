package compose_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/compose"
	"hyperkube/components/etcd"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/testing/testport"
)

// env is a running API server with a kubeconfig.
type env struct {
	testing.TB
	server *compose.Server
	conf   string
	url    string
	pki    *pki.Set
}

func start(t testing.TB) *env { return startOn(t, nil) }

// startOn runs an API server on a new etcd. filled, unless nil, prepares the etcd.
func startOn(t testing.TB, filled func(*clientv3.Client), changes ...func(*compose.Config)) *env {
	t.Helper()
	// Disk latency is not under test: without NoSync etcd would fail if the disk stalled for
	// several seconds.
	return startWith(t, etcd.Config{DataDir: filepath.Join(t.TempDir(), "etcd"), NoSync: true}, filled, changes...)
}

// startWith is like startOn but runs etcd with the configuration data, except for its addresses.
func startWith(t testing.TB, data etcd.Config, filled func(*clientv3.Client), changes ...func(*compose.Config)) *env {
	t.Helper()
	dir := t.TempDir()
	set, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Config{NodeName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	data.ListenClientURLs = []string{"http://" + testport.Address(t)}
	data.ListenPeerURLs = []string{"http://" + testport.Address(t)}
	db, err := etcd.New(data)
	if err != nil {
		t.Fatal(err)
	}
	run := func(what string, f func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	run("etcd", db.Run)
	<-db.Ready()
	if filled != nil {
		filled(db.Client())
	}
	keys, err := tokens.LoadKeySet(set.ServiceAccountPubFile)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	cfg := compose.Config{
		Etcd: db.Client(), Listener: listener, CertFile: set.APIServer.CertFile, KeyFile: set.APIServer.KeyFile,
		FrontProxyCAFile: set.FrontProxyCA.CertFile, FrontProxy: authn.FrontProxy{AllowedNames: []string{"front-proxy-client"}},
		ProxyCertFile: set.FrontProxyClient.CertFile, ProxyKeyFile: set.FrontProxyClient.KeyFile, EndpointRouting: true,
		ClientCAFile: set.CA.CertFile, Issuers: []string{"https://kubernetes.default.svc"},
		Key: set.ServiceAccountKey, Keys: keys, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Advertise: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(port)),
	}
	for _, change := range changes {
		change(&cfg)
	}
	server, err := compose.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	run("API server", server.Run)
	<-server.Ready()
	t.Logf("the API server was ready after %s", time.Since(began))
	admin, err := set.CA.NewPair(pki.Client("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	e := &env{TB: t, server: server, conf: filepath.Join(dir, "admin.conf"), url: fmt.Sprintf("https://127.0.0.1:%d", port), pki: set}
	if err := kubeconfig.Write(e.conf, kubeconfig.Config{
		Server: e.url, CA: set.CA.CertPEM, Cert: admin.CertPEM, Key: admin.KeyPEM,
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) kubectl(input string, args ...string) (string, error) {
	cmd := exec.Command("kubectl", append([]string{"--kubeconfig", e.conf}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+e.TempDir())
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestKubectl tests the complete API server with a released kubectl.
func TestKubectl(t *testing.T) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("this machine has no kubectl")
	}
	e := start(t)
	for _, step := range []struct {
		input string
		args  string
		want  []string
		fails bool
	}{
		{"", "version", []string{"Server Version: v1.37"}, false},
		{"", "get namespaces", []string{"default", "kube-system", "Active"}, false},
		{"", "api-resources", []string{"deployments", "deploy", "configmaps"}, false},
		{"", "create configmap one --from-literal=a=b", []string{"configmap/one created"}, false},
		{"", "create configmap one", []string{`configmaps "one" already exists`}, true},
		{"", "get configmap one -o yaml", []string{"a: b", "uid:"}, false},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\ndata: {x: why}\n", "apply -f -", []string{"configmap/two created"}, false},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\ndata: {x: z}\n", "diff -f -", []string{"+  x: z"}, true},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\ndata: {x: z}\n", "apply -f -", []string{"configmap/two configured"}, false},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\ndata: {x: z}\n", "apply -f -", []string{"configmap/two unchanged"}, false},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: three}\ndatum: {x: z}\n", "create -f -", []string{"unknown field"}, true},
		{"", "get cm", []string{"NAME", "DATA", "AGE", "two"}, false},
		{"", "explain deployment.spec.replicas", []string{"replicas", "integer"}, false},
		{"", "create service clusterip web --tcp=80", []string{"created"}, false},
		{"", "get service kubernetes web", []string{"10.96.0.1", "ClusterIP", "443/TCP"}, false},
		{"", "get endpointslices", []string{"kubernetes", "192.0.2.1"}, false},
		{"", "create serviceaccount bob", []string{"created"}, false},
		{"", "create token bob", []string{"eyJ"}, false},
		{"", "auth can-i create pods --as=bob", []string{"no"}, true},
		{"", "auth whoami", []string{"admin", "system:masters"}, false},
		{"", "get pods --as=bob", []string{"Forbidden", `User "bob" cannot list resource "pods"`}, true},
		{"", "create deployment web --image=nginx --replicas=2", []string{"created"}, false},
		{"", "scale deployment web --replicas=5", []string{"scaled"}, false},
		{"", "get deployment web", []string{"0/5"}, false},
		{"", "run p --image=busybox", []string{"serviceaccount \"default\" not found"}, true},
		{"", "create serviceaccount default", nil, false},
		{"", "run p --image=busybox", []string{"pod/p created"}, false},
		{"", "get pod p -o yaml", []string{"kube-api-access-", "node.kubernetes.io/not-ready", "phase: Pending"}, false},
		{"", "get pods", []string{"p ", "0/1", "Pending"}, false},
		{"", "delete pod p", []string{"deleted"}, false},
		{"", "label configmap one k=v", []string{"labeled"}, false},
		{"", "get cm -l k=v -o name", []string{"configmap/one"}, false},
		{"", "get --raw /readyz?verbose", []string{"[+]etcd ok", "readyz check passed"}, false},
		{"", "get --raw /.well-known/openid-configuration", []string{"jwks_uri"}, false},
		{"", "delete configmap --all", []string{`"one" deleted`}, false},
	} {
		out, err := e.kubectl(step.input, strings.Fields(step.args)...)
		if (err != nil) != step.fails {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out)
			continue
		}
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl %s: no %q in\n%s", step.args, want, out)
			}
		}
	}
}
