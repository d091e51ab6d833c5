package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hyperkube/internal/credentials/pki"
)

func TestTLSConfig(t *testing.T) {
	dir := t.TempDir()
	set, err := pki.Ensure(dir, pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	files := func(names ...string) NamedCertificate {
		t.Helper()
		pair, err := set.CA.NewPair(pki.Server("x", names...))
		if err != nil {
			t.Fatal(err)
		}
		out := NamedCertificate{CertFile: filepath.Join(dir, names[0]+".crt"), KeyFile: filepath.Join(dir, names[0]+".key")}
		if err := os.WriteFile(out.CertFile, pair.CertPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(out.KeyFile, pair.KeyPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		return out
	}
	usual, own, wild := files("usual.example.com"), files("own.example.com"), files("any.example.com")
	wild.Names = []string{"*.wild.example.com"}
	pool := set.CA.Pool()
	s := &Server{log: slog.Default(), cfg: Config{CertFile: usual.CertFile, KeyFile: usual.KeyFile, TLS: TLSConfig{
		MinVersion: tls.VersionTLS13, SNI: []NamedCertificate{own, wild}, ClientCAs: func() *x509.CertPool { return pool },
	}}}
	cfg, err := s.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"": "usual.example.com", "usual.example.com": "usual.example.com", "OWN.example.com": "own.example.com",
		"a.wild.example.com": "any.example.com", "a.b.wild.example.com": "usual.example.com",
	} {
		cert, err := cfg.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil || leaf.DNSNames[0] != want {
			t.Errorf("%q: certificate of %v, want %s", name, leaf.DNSNames, want)
		}
	}
	if cfg.MinVersion != tls.VersionTLS13 {
		t.Errorf("oldest version %x", cfg.MinVersion)
	}
	one, _ := cfg.GetConfigForClient(nil)
	if again, _ := cfg.GetConfigForClient(nil); again != one || one.ClientCAs != pool {
		t.Error("each connection gets a new configuration")
	}
	pool = set.EtcdCA.Pool()
	if next, _ := cfg.GetConfigForClient(nil); next == one || next.ClientCAs != pool {
		t.Error("changed CAs are not applied")
	}
	s.cfg.TLS.SNI = append(s.cfg.TLS.SNI, NamedCertificate{CertFile: "none", KeyFile: "none"})
	if _, err := s.tlsConfig(); err == nil {
		t.Error("a missing certificate is accepted")
	}
}

// TestCertificateChanges checks that a replaced serving certificate is used without a restart, and
// that one that does not match its key is ignored.
func TestCertificateChanges(t *testing.T) {
	dir := t.TempDir()
	set, err := pki.Ensure(dir, pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "s.crt"), filepath.Join(dir, "s.key")
	age := time.Now().Add(-time.Hour)
	write := func(name string, withKey bool) {
		t.Helper()
		pair, err := set.CA.NewPair(pki.Server("x", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(certFile, pair.CertPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		if withKey {
			if err := os.WriteFile(keyFile, pair.KeyPEM, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		age = age.Add(time.Minute) // file timestamps may be coarse
		if err := os.Chtimes(certFile, age, age); err != nil {
			t.Fatal(err)
		}
	}
	write("first.example.com", true)
	c, err := newCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.CheckInterval = 0 // check at every handshake
	shown := func(want string) {
		t.Helper()
		pair, err := c.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil || leaf.DNSNames[0] != want {
			t.Errorf("shown is the certificate of %v, want %s", leaf.DNSNames, want)
		}
	}
	shown("first.example.com")
	write("second.example.com", true)
	shown("second.example.com")
	write("third.example.com", false)
	shown("second.example.com")
	write("fourth.example.com", true)
	shown("fourth.example.com")
}
