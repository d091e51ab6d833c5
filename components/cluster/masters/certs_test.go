package masters

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
	"hyperkube/internal/testpki"
)

// testMaster writes what init does before the node starts.
func testMaster(t *testing.T) *master {
	t.Helper()
	address := netip.MustParseAddr("192.0.2.1")
	m := &master{
		layout: layout.Under(t.TempDir()), settings: masterSettings{Port: 6443, SANs: []string{"api.example.org"}},
		identity: identity.Cluster{NodeName: "m", Domain: "cluster.local", PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/16"}, DNSAddress: "10.96.0.10"},
		address:  address, addresses: []netip.Addr{address},
	}
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	return m
}

// filesOf are the contents of all files below a master's folders.
func filesOf(t *testing.T, l layout.Node) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, dir := range []string{l.Etc, l.Data, l.Kubelet} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, _ := filepath.Rel(dir, path)
			files[rel], err = os.ReadFile(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// changed are the names of what is not as it was.
func changed(before, after map[string][]byte) []string {
	var names []string
	for name, data := range after {
		if !bytes.Equal(data, before[name]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestMasterKeeper: the node of a master renews what is due, in files and in
// kubeconfigs, for the names that it had, and starts those again who see it only then.
func TestMasterKeeper(t *testing.T) {
	m := testMaster(t)
	k := certs.Keeper{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}
	before := filesOf(t, m.layout)
	next, err := k.Renew()
	if left := time.Until(next); err != nil || left < 200*24*time.Hour || left > 300*24*time.Hour {
		t.Errorf("next in %v: %v", left, err)
	}
	if names := changed(before, filesOf(t, m.layout)); len(names) != 0 {
		t.Errorf("nothing is due, and it changes %v", names)
	}

	old := m.pki.APIServer
	testpki.Age(t, m.pki.CA, old)
	conf := m.conf("scheduler")
	data, err := kubeconfig.ClientCertificate(conf)
	if err != nil {
		t.Fatal(err)
	}
	spec := pki.Client("system:kube-scheduler")
	spec.Validity = time.Minute
	short, err := m.pki.CA.NewPair(spec)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := (kubeconfig.Target{Path: conf}).ReplaceCertificate(data, short.CertPEM, short.KeyPEM); !found || err != nil {
		t.Fatal(found, err)
	}
	before = filesOf(t, m.layout)
	if _, err := k.Renew(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kubeconfig-keys/scheduler.crt", "kubeconfig-keys/scheduler.key", "manifests/kube-scheduler.yaml",
		"pki/apiserver.crt", "pki/apiserver.key", "scheduler.conf",
	}
	if names := changed(before, filesOf(t, m.layout)); !slices.Equal(names, want) {
		t.Errorf("it changes %v, want %v", names, want)
	}
	set, err := pki.Load(m.pkiDir())
	if err != nil {
		t.Fatal(err)
	}
	cert := set.APIServer.Cert
	if !slices.Equal(cert.DNSNames, old.Cert.DNSNames) || len(cert.IPAddresses) != len(old.Cert.IPAddresses) || cert.VerifyHostname("api.example.org") != nil ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || time.Until(cert.NotAfter) < 300*24*time.Hour {
		t.Errorf("the API server's certificate says something else: %v %v, until %v", cert.DNSNames, cert.IPAddresses, cert.NotAfter)
	}
	config, err := clientcmd.BuildConfigFromFlags("", conf)
	if err != nil {
		t.Fatal(err)
	}
	user, err := pki.ParseCertificate(config.CertData)
	if err != nil || user.Subject.CommonName != "system:kube-scheduler" || time.Until(user.NotAfter) < 300*24*time.Hour {
		t.Errorf("the scheduler is %v: %v", user.Subject, err)
	}
	// init agrees with all of it.
	before = filesOf(t, m.layout)
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, name := range changed(before, filesOf(t, m.layout)) {
		if !strings.HasPrefix(name, "pki/kubelet-client-") {
			t.Errorf("init changes %s", name)
		}
	}
}

// TestCertsRenew: people renew by name, in their own kubeconfig too, and are told of
// what there is not.
func TestCertsRenew(t *testing.T) {
	m := testMaster(t)
	own := filepath.Join(t.TempDir(), "config")
	t.Setenv("KUBECONFIG", own)
	m.mergeKubeconfig = true
	if err := m.enter(); err != nil {
		t.Fatal(err)
	}
	before := filesOf(t, m.layout)
	var out bytes.Buffer
	if err := renewNamed(&out, m.layout, []string{"admin.conf", "etcd-peer"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"admin.conf", "kubeconfig-keys/admin.crt", "kubeconfig-keys/admin.key", "pki/etcd/peer.crt", "pki/etcd/peer.key"}
	if names := changed(before, filesOf(t, m.layout)); !slices.Equal(names, want) {
		t.Errorf("it changes %v, want %v; it says %s", names, want, &out)
	}
	theirs, err := kubeconfig.ClientCertificate(own)
	if err != nil {
		t.Fatal(err)
	}
	if ours, err := kubeconfig.ClientCertificate(m.conf("admin")); err != nil || !bytes.Equal(ours, theirs) {
		t.Errorf("the user's kubeconfig has another certificate than admin.conf: %v", err)
	}
	out.Reset()
	if err := renewNamed(&out, m.layout, []string{"all"}); err != nil || strings.Count(out.String(), " renewed\n") != 13 {
		t.Errorf("%v: %s", err, &out)
	}
	for _, names := range [][]string{{"apiserver", "nobody"}, {"ca"}} {
		before := filesOf(t, m.layout)
		if err := renewNamed(&out, m.layout, names); err == nil || len(changed(before, filesOf(t, m.layout))) != 0 {
			t.Errorf("renewing %v: %v", names, err)
		}
	}
	if err := renewNamed(&out, layout.Under(t.TempDir()), []string{"all"}); err == nil {
		t.Error("a machine that is no master renews")
	}

	// An authority whose key somebody keeps elsewhere, and a file that is gone.
	for _, name := range []string{"ca.key", "apiserver-etcd-client.crt"} {
		if err := os.Remove(filepath.Join(m.pkiDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := renewNamed(&out, m.layout, []string{"apiserver"}); err == nil || !strings.Contains(err.Error(), certs.ErrExternal.Error()) {
		t.Errorf("renewed without the authority's key: %v", err)
	}
	info, err := lookExpiration(m.layout, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := info.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{}
	for _, line := range strings.Split(out.String(), "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			lines[f[0]] = f
		}
	}
	last := func(name string) string { f := lines[name]; return f[len(f)-1] }
	if last("apiserver") != "yes" || last("etcd-server") != "no" || last("ca") != "yes" || last("!MISSING!") != "apiserver-etcd-client" ||
		!slices.Contains(lines["apiserver"], "364d") || !slices.Contains(lines["etcd-ca"], "9y") {
		t.Errorf("it says\n%s", &out)
	}
}

// TestMasterComesBack: a master that was off until its certificates had expired has good
// ones before its node begins, its node's too.
func TestMasterComesBack(t *testing.T) {
	m := testMaster(t)
	options := node.Options{}
	if err := options.Load(m.layout); err != nil {
		t.Fatal(err)
	}
	expired := func(name string, spec pki.Spec, parts ...func(*pki.Pair) []byte) {
		t.Helper()
		spec.Validity = time.Nanosecond
		pair, err := m.pki.CA.NewPair(spec)
		if err != nil {
			t.Fatal(err)
		}
		var data []byte
		for _, part := range parts {
			data = append(data, part(pair)...)
		}
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := func(p *pki.Pair) []byte { return p.CertPEM }, func(p *pki.Pair) []byte { return p.KeyPEM }
	own := filepath.Join(m.layout.Kubelet, "pki", "kubelet-client-current.pem")
	first, err := os.Readlink(own)
	if err != nil {
		t.Fatal(err)
	}
	expired(first, pki.Node("m"), cert, key)
	expired(m.pki.APIServer.CertFile, pki.Server("kube-apiserver", "api.example.org"), cert)
	certs.Keeper{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}.Mend(options.Certificates(m.layout))
	for path, user := range map[string]string{own: "system:node:m", m.pki.APIServer.CertFile: "kube-apiserver"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now, err := pki.ParseCertificate(data)
		if err != nil || now.Subject.CommonName != user || time.Until(now.NotAfter) < 300*24*time.Hour {
			t.Errorf("%s is of %v, until %v: %v", path, now.Subject, now.NotAfter, err)
		}
	}
	// Good ones are left alone.
	before := filesOf(t, m.layout)
	certs.Keeper{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}.Mend(options.Certificates(m.layout))
	if names := changed(before, filesOf(t, m.layout)); len(names) != 0 {
		t.Errorf("it changes %v", names)
	}
}

func TestEtcdIsPrivate(t *testing.T) {
	m := testMaster(t)
	info, err := os.Stat(m.layout.Etcd())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of etcd has mode %v: %v", info.Mode(), err)
	}
}
