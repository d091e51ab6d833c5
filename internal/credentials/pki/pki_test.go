package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func testConfig() Config {
	return Config{
		NodeName:         "node-1",
		NodeAddresses:    []net.IP{net.ParseIP("192.0.2.10")},
		ServiceAddresses: []net.IP{net.ParseIP("10.96.0.1")},
		ExtraNames:       []string{"api.example.org", "203.0.113.7"},
	}
}

func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func ensure(t *testing.T, dir string, cfg Config) *Set {
	t.Helper()
	set, err := Ensure(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestEnsureIsIdempotent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	set := ensure(t, dir, testConfig())
	first := contents(t, dir)
	want := []string{
		"ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key",
		"front-proxy-ca.crt", "front-proxy-ca.key", "front-proxy-client.crt", "front-proxy-client.key",
		"etcd/ca.crt", "etcd/ca.key", "etcd/server.crt", "etcd/server.key", "etcd/peer.crt", "etcd/peer.key",
		"etcd/healthcheck-client.crt", "etcd/healthcheck-client.key", "apiserver-etcd-client.crt", "apiserver-etcd-client.key",
		"sa.key", "sa.pub",
	}
	if len(first) != len(want) {
		t.Errorf("%d files, want %d", len(first), len(want))
	}
	for _, name := range want {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if filepath.Ext(name) == ".key" && info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	cfg := testConfig()
	cfg.ExtraNames = append(cfg.ExtraNames, cfg.NodeAddresses[0].String(), cfg.NodeName)
	twice := ensure(t, filepath.Join(t.TempDir(), "pki"), cfg)
	if got, want := twice.APIServer.Cert, set.APIServer.Cert; len(got.IPAddresses) != len(want.IPAddresses) || len(got.DNSNames) != len(want.DNSNames) {
		t.Errorf("duplicates were not removed: %v, %v", got.IPAddresses, got.DNSNames)
	}
	for _, host := range []string{"kubernetes", "kubernetes.default.svc.cluster.local", "node-1", "localhost", "127.0.0.1", "::1", "192.0.2.10", "10.96.0.1", "api.example.org", "203.0.113.7"} {
		if err := set.APIServer.Cert.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	_, err := set.APIServerKubeletClient.Cert.Verify(x509.VerifyOptions{Roots: set.CA.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Error(err)
	}
	if _, err := set.FrontProxyClient.Cert.Verify(x509.VerifyOptions{Roots: set.CA.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the front proxy's certificate verifies against the cluster CA")
	}

	ensure(t, dir, testConfig())
	for name, data := range contents(t, dir) {
		if !bytes.Equal(data, first[name]) {
			t.Errorf("%s changed", name)
		}
	}
	if _, err := Load(dir); err != nil {
		t.Error(err)
	}
}

func TestEnsureRenews(t *testing.T) {
	changed := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	expired := func(t *testing.T, set *Set, validity time.Duration) {
		spec := Client("front-proxy-client")
		spec.Validity = validity
		pair, err := set.FrontProxyCA.NewPair(spec)
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(set.FrontProxyClient.CertFile, pair.CertPEM, 0o644)
		os.WriteFile(set.FrontProxyClient.KeyFile, pair.KeyPEM, 0o600)
	}
	tests := []struct {
		name   string
		damage func(t *testing.T, dir string, set *Set, cfg *Config)
		want   map[string]bool
	}{
		{"new node address", func(t *testing.T, dir string, set *Set, cfg *Config) {
			cfg.NodeAddresses = []net.IP{net.ParseIP("192.0.2.99")}
		}, changed("apiserver.crt", "apiserver.key", "etcd/server.crt", "etcd/server.key", "etcd/peer.crt", "etcd/peer.key")},
		{"new API server name", func(t *testing.T, dir string, set *Set, cfg *Config) {
			cfg.ExtraNames = append(cfg.ExtraNames, "other.example.org")
		}, changed("apiserver.crt", "apiserver.key")},
		{"address no longer needed", func(t *testing.T, dir string, set *Set, cfg *Config) {
			cfg.ExtraNames = nil
		}, changed()},
		{"expired", func(t *testing.T, dir string, set *Set, cfg *Config) {
			expired(t, set, time.Nanosecond)
		}, changed("front-proxy-client.crt", "front-proxy-client.key")},
		{"empty file", func(t *testing.T, dir string, set *Set, cfg *Config) {
			os.WriteFile(set.APIServerEtcdClient.CertFile, nil, 0o644)
		}, changed("apiserver-etcd-client.crt", "apiserver-etcd-client.key")},
		{"key of another certificate", func(t *testing.T, dir string, set *Set, cfg *Config) {
			os.WriteFile(set.APIServerEtcdClient.KeyFile, set.APIServer.KeyPEM, 0o600)
		}, changed("apiserver-etcd-client.crt", "apiserver-etcd-client.key")},
		{"kubelet client of an earlier version", func(t *testing.T, dir string, set *Set, cfg *Config) {
			if _, err := set.CA.EnsurePair(filepath.Join(dir, "apiserver-kubelet-client"), Client("kube-apiserver-kubelet-client", "system:masters")); err != nil {
				t.Fatal(err)
			}
		}, changed("apiserver-kubelet-client.crt", "apiserver-kubelet-client.key")},
		{"lost public key", func(t *testing.T, dir string, set *Set, cfg *Config) {
			os.Remove(set.ServiceAccountPubFile)
		}, changed()},
		{"other authority", func(t *testing.T, dir string, set *Set, cfg *Config) {
			os.Remove(filepath.Join(dir, "front-proxy-ca.crt"))
			os.Remove(filepath.Join(dir, "front-proxy-ca.key"))
		}, changed("front-proxy-ca.crt", "front-proxy-ca.key", "front-proxy-client.crt", "front-proxy-client.key")},
		{"CA key without certificate", func(t *testing.T, dir string, set *Set, cfg *Config) {
			os.Remove(filepath.Join(dir, "ca.crt"))
		}, changed("ca.crt")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, cfg := t.TempDir(), testConfig()
			set := ensure(t, dir, cfg)
			before := contents(t, dir)
			tt.damage(t, dir, set, &cfg)
			ensure(t, dir, cfg)
			after := contents(t, dir)
			if len(after) != len(before) {
				t.Errorf("%d files, want %d", len(after), len(before))
			}
			for name := range before {
				if got := !bytes.Equal(before[name], after[name]); got != tt.want[name] {
					t.Errorf("%s changed: %v, want %v", name, got, tt.want[name])
				}
			}
			loaded := mustLoad(t, dir)
			if got := loaded.APIServerKubeletClient.Cert.Subject.Organization; !slices.Equal(got, []string{KubeletClientGroup}) {
				t.Errorf("the client of kubelets is in the groups %v", got)
			}
			for _, l := range loaded.leaves(cfg) {
				if !l.ca.valid(*l.dst, l.spec) {
					t.Errorf("%s is not valid", l.file)
				}
			}
		})
	}
}

func mustLoad(t *testing.T, dir string) *Set {
	t.Helper()
	set, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestExistingCAsAreKept(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, testConfig())
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, testConfig()); err == nil {
		t.Error("a damaged CA was accepted")
	}
}

func TestExternalAuthority(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, testConfig())
	os.Remove(filepath.Join(dir, "ca.key"))
	if _, err := Ensure(dir, testConfig()); err != nil {
		t.Errorf("nothing had to be signed: %v", err)
	}
	os.Remove(filepath.Join(dir, "apiserver.crt"))
	if _, err := Ensure(dir, testConfig()); err == nil {
		t.Error("signed without a key")
	}
}

// TestRequestsKeepExistingKeys checks that each signing request has a key beside it, and that
// existing keys are kept.
func TestRequestsKeepExistingKeys(t *testing.T) {
	dir := t.TempDir()
	empty, kept := filepath.Join(dir, "apiserver"), filepath.Join(dir, "front-proxy-client")
	if err := os.WriteFile(empty+".key", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var before []byte
	for range 2 {
		if _, err := Requests(dir, Config{NodeName: "n"}); err != nil {
			t.Fatal(err)
		}
		for _, base := range []string{empty, kept} {
			key, err := os.ReadFile(base + ".key")
			if err != nil {
				t.Fatal(err)
			}
			signer, err := parseKey(key)
			if err != nil {
				t.Fatalf("%s.key: %v", base, err)
			}
			data, err := os.ReadFile(base + ".csr")
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(data)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil || !signer.Public().(*ecdsa.PublicKey).Equal(request.PublicKey) {
				t.Errorf("%s.csr has another key: %v", base, err)
			}
			if base != kept {
				continue
			}
			if before != nil && !bytes.Equal(key, before) {
				t.Errorf("%s.key was replaced", base)
			}
			before = key
		}
	}
}

func TestEnsurePair(t *testing.T) {
	dir := t.TempDir()
	set := ensure(t, dir, testConfig())
	base := filepath.Join(dir, "kubelet", "kubelet")
	a, err := set.CA.EnsurePair(base, KubeletServer("node-1", "192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := set.CA.EnsurePair(base, KubeletServer("node-1", "192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	if !a.Cert.Equal(b.Cert) {
		t.Error("made again")
	}
	if c := b.TLS(); len(c.Certificate) != 1 || c.PrivateKey == nil {
		t.Error("incomplete TLS certificate")
	}
}

func BenchmarkEnsure(b *testing.B) {
	root := b.TempDir()
	for i := 0; b.Loop(); i++ {
		if _, err := Ensure(filepath.Join(root, time.Now().String()), testConfig()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRenewPair checks that a renewed certificate has the same content and a new key, also if the
// old key has another type.
func TestRenewPair(t *testing.T) {
	dir := t.TempDir()
	set := ensure(t, dir, testConfig())
	old := set.EtcdPeer
	if err := os.WriteFile(old.KeyFile, set.EtcdServer.KeyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := set.EtcdCA.RenewPair(filepath.Join(dir, "etcd", "peer")); err != nil {
		t.Fatal(err)
	}
	renewed := mustLoad(t, dir).EtcdPeer
	if bytes.Equal(renewed.KeyPEM, old.KeyPEM) || bytes.Equal(renewed.CertPEM, old.CertPEM) {
		t.Error("the certificate was not renewed")
	}
	for _, l := range set.leaves(testConfig()) {
		if l.file == "etcd/peer" && !l.ca.valid(renewed, l.spec) {
			t.Errorf("renewed certificate has %v %v", renewed.Cert.DNSNames, renewed.Cert.ExtKeyUsage)
		}
	}
	if !slices.Equal(renewed.Cert.ExtKeyUsage, old.Cert.ExtKeyUsage) || renewed.Cert.Subject.String() != old.Cert.Subject.String() {
		t.Errorf("%v %v, was %v %v", renewed.Cert.Subject, renewed.Cert.ExtKeyUsage, old.Cert.Subject, old.Cert.ExtKeyUsage)
	}
}
