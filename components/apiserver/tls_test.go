package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"hyperkube/internal/pki"
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
		t.Error("each connection has a configuration of its own")
	}
	pool = set.EtcdCA.Pool()
	if next, _ := cfg.GetConfigForClient(nil); next == one || next.ClientCAs != pool {
		t.Error("other authorities are not taken over")
	}
	s.cfg.TLS.SNI = append(s.cfg.TLS.SNI, NamedCertificate{CertFile: "none", KeyFile: "none"})
	if _, err := s.tlsConfig(); err == nil {
		t.Error("a certificate that is not there is accepted")
	}
}
