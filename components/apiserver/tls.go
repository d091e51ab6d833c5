package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"

	"hyperkube/internal/pki"
)

// TLSConfig says how clients on the network are served, besides the serving
// certificate.
type TLSConfig struct {
	// MinVersion, such as tls.VersionTLS13; zero means TLS 1.2.
	MinVersion uint16
	// CipherSuites for TLS 1.2; nil means Go's choice.
	CipherSuites []uint16
	// NoHTTP2 leaves clients HTTP/1.1 alone.
	NoHTTP2 bool
	// SNI are certificates for other names than those of the serving
	// certificate, the first that fits is shown. They are read again when they
	// change.
	SNI []NamedCertificate
	// ClientCAs returns the authorities of which certificates are asked for.
	// It is asked for every connection, may return nil, and returns the same
	// pool as long as nothing changed. Nil: those of Config.
	ClientCAs func() *x509.CertPool
}

// NamedCertificate is a certificate for clients that ask for certain names.
type NamedCertificate struct {
	CertFile, KeyFile string
	// Names may begin with "*.". Empty: those that the certificate has.
	Names []string
}

// tlsConfig makes the configuration of the listener.
func (s *Server) tlsConfig() (*tls.Config, error) {
	usual, err := newCertificate(s.cfg.CertFile, s.cfg.KeyFile, s.log)
	if err != nil {
		return nil, err
	}
	own := s.cfg.TLS
	base := &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return usual.Certificate() },
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      s.cfg.ClientCAs,
		MinVersion:     max(own.MinVersion, tls.VersionTLS12),
		CipherSuites:   own.CipherSuites,
		NextProtos:     []string{"h2", "http/1.1"},
	}
	if own.NoHTTP2 {
		base.NextProtos = []string{"http/1.1"}
	}
	if own.MinVersion != 0 {
		base.MinVersion = own.MinVersion // who asks for an older one gets it
	}
	if len(own.SNI) > 0 {
		if base.GetCertificate, err = s.named(usual, own.SNI); err != nil {
			return nil, err
		}
	}
	if own.ClientCAs != nil {
		base.GetConfigForClient = forAuthorities(base, own.ClientCAs)
	}
	return base, nil
}

// forAuthorities returns base with the present authorities. It is copied only
// when these are others, so that session tickets stay good.
func forAuthorities(base *tls.Config, pool func() *x509.CertPool) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	var mu sync.Mutex // guards what follows
	var current *tls.Config
	return func(*tls.ClientHelloInfo) (*tls.Config, error) {
		p := pool()
		mu.Lock()
		defer mu.Unlock()
		if current == nil || current.ClientCAs != p {
			current = base.Clone()
			current.GetConfigForClient, current.ClientCAs = nil, p
		}
		return current, nil
	}
}

// named picks a certificate by the name that the client asks for.
func (s *Server) named(usual *pki.Files, all []NamedCertificate) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	byName := map[string]*pki.Files{}
	for _, n := range all {
		c, err := newCertificate(n.CertFile, n.KeyFile, s.log)
		if err != nil {
			return nil, err
		}
		names := n.Names
		if len(names) == 0 {
			pair, err := c.Certificate()
			if err != nil {
				return nil, err
			}
			leaf, err := x509.ParseCertificate(pair.Certificate[0])
			if err != nil {
				return nil, fmt.Errorf("serving certificate: %w", err)
			}
			names = leaf.DNSNames
			if len(names) == 0 && leaf.Subject.CommonName != "" {
				names = []string{leaf.Subject.CommonName}
			}
		}
		for _, name := range names {
			if name = strings.ToLower(name); byName[name] == nil {
				byName[name] = c
			}
		}
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
		if c := byName[name]; c != nil {
			return c.Certificate()
		}
		if _, rest, ok := strings.Cut(name, "."); ok {
			if c := byName["*."+rest]; c != nil {
				return c.Certificate()
			}
		}
		return usual.Certificate()
	}, nil
}
