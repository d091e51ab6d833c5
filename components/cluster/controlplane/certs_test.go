package controlplane

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

	"hyperkube/components/cluster/certrenewal"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/node"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testpki"
)

// newTestNode writes the files that init writes before the node starts.
func newTestNode(t *testing.T) *controlPlaneNode {
	t.Helper()
	address := netip.MustParseAddr("192.0.2.1")
	m := &controlPlaneNode{
		layout: layout.Under(t.TempDir()), settings: controlPlaneSettings{Port: 6443, SANs: []string{"api.example.org"}},
		identity: clusterconfig.Cluster{NodeName: "m", Domain: "cluster.local", PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/16"}, DNSAddress: "10.96.0.10"},
		address:  address, addresses: []netip.Addr{address},
	}
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	return m
}

// readFiles returns the contents of all files below the directories of a control plane node.
func readFiles(t *testing.T, l layout.Node) map[string][]byte {
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

// changed returns the names of files that differ.
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

// TestRenewer renews due certificates of a control plane node, in files and in kubeconfigs.
// The names stay the same, and components that read their kubeconfig only at start restart.
func TestRenewer(t *testing.T) {
	m := newTestNode(t)
	k := certrenewal.Renewer{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}
	before := readFiles(t, m.layout)
	next, err := k.Renew()
	if left := time.Until(next); err != nil || left < 200*24*time.Hour || left > 300*24*time.Hour {
		t.Errorf("next renewal in %v: %v", left, err)
	}
	if names := changed(before, readFiles(t, m.layout)); len(names) != 0 {
		t.Errorf("nothing is due, but changed %v", names)
	}

	old := m.pki.APIServer
	testpki.ReplaceByExpiring(t, m.pki.CA, old)
	conf := m.kubeconfigPath("scheduler")
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
	before = readFiles(t, m.layout)
	if _, err := k.Renew(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kubeconfig-keys/scheduler.crt", "kubeconfig-keys/scheduler.key", "manifests/kube-scheduler.yaml",
		"pki/apiserver.crt", "pki/apiserver.key", "scheduler.conf",
	}
	if names := changed(before, readFiles(t, m.layout)); !slices.Equal(names, want) {
		t.Errorf("changed %v, want %v", names, want)
	}
	set, err := pki.Load(m.pkiDir())
	if err != nil {
		t.Fatal(err)
	}
	cert := set.APIServer.Cert
	if !slices.Equal(cert.DNSNames, old.Cert.DNSNames) || len(cert.IPAddresses) != len(old.Cert.IPAddresses) || cert.VerifyHostname("api.example.org") != nil ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || time.Until(cert.NotAfter) < 300*24*time.Hour {
		t.Errorf("certificate of the API server: %v %v, not after %v", cert.DNSNames, cert.IPAddresses, cert.NotAfter)
	}
	config, err := clientcmd.BuildConfigFromFlags("", conf)
	if err != nil {
		t.Fatal(err)
	}
	user, err := pki.ParseCertificate(config.CertData)
	if err != nil || user.Subject.CommonName != "system:kube-scheduler" || time.Until(user.NotAfter) < 300*24*time.Hour {
		t.Errorf("subject of the scheduler: %v: %v", user.Subject, err)
	}
	// init does not change the renewed files.
	before = readFiles(t, m.layout)
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, name := range changed(before, readFiles(t, m.layout)) {
		if !strings.HasPrefix(name, "pki/kubelet-client-") {
			t.Errorf("init changed %s", name)
		}
	}
}

// TestCertsRenew renews certificates by name, including the one in the user's kubeconfig. Unknown
// names are errors.
func TestCertsRenew(t *testing.T) {
	m := newTestNode(t)
	userConfig := filepath.Join(t.TempDir(), "config")
	t.Setenv("KUBECONFIG", userConfig)
	m.mergeKubeconfig = true
	if err := m.credentials().mergeAdminKubeconfig(); err != nil {
		t.Fatal(err)
	}
	before := readFiles(t, m.layout)
	var out bytes.Buffer
	if err := renewNamed(&out, m.layout, []string{"admin.conf", "etcd-peer"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"admin.conf", "kubeconfig-keys/admin.crt", "kubeconfig-keys/admin.key", "pki/etcd/peer.crt", "pki/etcd/peer.key"}
	if names := changed(before, readFiles(t, m.layout)); !slices.Equal(names, want) {
		t.Errorf("changed %v, want %v; output: %s", names, want, &out)
	}
	userCert, err := kubeconfig.ClientCertificate(userConfig)
	if err != nil {
		t.Fatal(err)
	}
	if adminCert, err := kubeconfig.ClientCertificate(m.kubeconfigPath("admin")); err != nil || !bytes.Equal(adminCert, userCert) {
		t.Errorf("the certificates of the user's kubeconfig and admin.conf differ: %v", err)
	}
	out.Reset()
	if err := renewNamed(&out, m.layout, []string{"all"}); err != nil || strings.Count(out.String(), " renewed\n") != 13 {
		t.Errorf("%v: %s", err, &out)
	}
	for _, names := range [][]string{{"apiserver", "unknown"}, {"ca"}} {
		before := readFiles(t, m.layout)
		if err := renewNamed(&out, m.layout, names); err == nil || len(changed(before, readFiles(t, m.layout))) != 0 {
			t.Errorf("renewing %v: %v", names, err)
		}
	}
	if err := renewNamed(&out, layout.Under(t.TempDir()), []string{"all"}); err == nil {
		t.Error("certificates renewed on a machine that is not a control plane node")
	}

	// The CA key is elsewhere, and one certificate is missing.
	for _, name := range []string{"ca.key", "apiserver-etcd-client.crt"} {
		if err := os.Remove(filepath.Join(m.pkiDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := renewNamed(&out, m.layout, []string{"apiserver"}); err == nil || !strings.Contains(err.Error(), certrenewal.ErrExternal.Error()) {
		t.Errorf("renewed without the CA key: %v", err)
	}
	info, err := checkExpiration(m.layout, time.Now())
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
		t.Errorf("output:\n%s", &out)
	}
}

// TestRenewBeforeStart checks a control plane node that was off until its certificates expired: they
// are renewed before the node starts, including the kubelet's certificate.
func TestRenewBeforeStart(t *testing.T) {
	m := newTestNode(t)
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
	kubeletCert := filepath.Join(m.layout.Kubelet, "pki", "kubelet-client-current.pem")
	first, err := os.Readlink(kubeletCert)
	if err != nil {
		t.Fatal(err)
	}
	expired(first, pki.Node("m"), cert, key)
	expired(m.pki.APIServer.CertFile, pki.Server("kube-apiserver", "api.example.org"), cert)
	certrenewal.Renewer{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}.RenewBeforeStart(options.CertificateConfig(m.layout))
	for path, user := range map[string]string{kubeletCert: "system:node:m", m.pki.APIServer.CertFile: "kube-apiserver"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now, err := pki.ParseCertificate(data)
		if err != nil || now.Subject.CommonName != user || time.Until(now.NotAfter) < 300*24*time.Hour {
			t.Errorf("%s: subject %v, not after %v: %v", path, now.Subject, now.NotAfter, err)
		}
	}
	// Valid certificates are not changed.
	before := readFiles(t, m.layout)
	certrenewal.Renewer{Layout: m.layout, Log: slog.New(slog.DiscardHandler)}.RenewBeforeStart(options.CertificateConfig(m.layout))
	if names := changed(before, readFiles(t, m.layout)); len(names) != 0 {
		t.Errorf("changed %v", names)
	}
}

func TestEtcdIsPrivate(t *testing.T) {
	m := newTestNode(t)
	info, err := os.Stat(m.layout.Etcd())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of etcd has mode %v: %v", info.Mode(), err)
	}
}
