package compose

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// TestCertDir checks which serving certificate is used without --tls-cert-file.
func TestCertDir(t *testing.T) {
	cfg := Config{
		Advertise:    netip.MustParseAddrPort("192.0.2.1:6443"),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
	}
	dir := filepath.Join(t.TempDir(), "new")
	o := options{certDir: dir, bind: "127.0.0.1"}
	if err := o.certificate(&cfg); err != nil {
		t.Fatal(err)
	}
	made, err := tls.LoadX509KeyPair(filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"192.0.2.1", "127.0.0.1", "10.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(cfg.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}

	// An existing certificate is used.
	before, err := os.ReadFile(cfg.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.certificate(&cfg); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(cfg.CertFile); err != nil || string(after) != string(before) {
		t.Errorf("the certificate was made again: %v", err)
	}

	// An incomplete pair is an error.
	if err := os.Remove(cfg.KeyFile); err != nil {
		t.Fatal(err)
	}
	if err := o.certificate(&cfg); err == nil {
		t.Error("a certificate without its key is accepted")
	}
	if err := (&options{certFile: "a.crt", certDir: dir}).certificate(&cfg); err == nil {
		t.Error("--tls-cert-file without a key is accepted")
	}
	named := Config{CertFile: "a.crt", KeyFile: "a.key"}
	if err := (&options{certFile: "a.crt", keyFile: "a.key", certDir: dir}).certificate(&named); err != nil || named.CertFile != "a.crt" {
		t.Errorf("named: %+v, %v", named, err)
	}
}
