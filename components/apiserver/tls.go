package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/serving/tlsdefaults"
)

// TLSConfig contains TLS settings besides the serving certificate.
type TLSConfig struct {
	// MinVersion is the minimum TLS version, for example tls.VersionTLS13. Zero means TLS 1.2.
	MinVersion uint16
	// CipherSuites for TLS 1.2 and below. Nil means tlsdefaults.CipherSuites.
	CipherSuites []uint16
	// NoHTTP2 disables HTTP/2.
	NoHTTP2 bool
	// SNI are additional certificates by server name. If several have the same name, the first is used. They are
	// reloaded when they change.
	SNI []NamedCertificate
	// ClientCAs returns the CAs whose names the TLS handshake sends to clients, so that they select a certificate. It
	// is called for every connection, may return nil, and must return the same pool as long as it has not changed. If
	// the function is nil, Config.ClientCAs is used.
	ClientCAs func() *x509.CertPool
}

// NamedCertificate is a serving certificate that clients get which request one of the server names
// (SNI).
type NamedCertificate struct {
	CertFile, KeyFile string
	// Names are the server names of the certificate and may start with "*.". If empty, the DNS names in the
	// certificate are used, or its common name if there are none.
	Names []string
}

// tlsConfig returns the TLS configuration of the listener. Client certificates are requested but not verified,
// because the authenticator does that. Serving certificates are reloaded when their files change. It returns an error
// if one cannot be read now.
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
	if base.CipherSuites == nil {
		base.CipherSuites = tlsdefaults.CipherSuites()
	}
	if own.NoHTTP2 {
		base.NextProtos = []string{"http/1.1"}
	}
	if own.MinVersion != 0 {
		base.MinVersion = own.MinVersion // allows versions below TLS 1.2 if configured
	}
	if len(own.SNI) > 0 {
		if base.GetCertificate, err = s.certificateForName(usual, own.SNI); err != nil {
			return nil, err
		}
	}
	if own.ClientCAs != nil {
		base.GetConfigForClient = forAuthorities(base, own.ClientCAs)
	}
	return base, nil
}

// forAuthorities returns a function for tls.Config.GetConfigForClient. The function returns base with the CAs that
// pool returns as ClientCAs. It copies base only when the CAs have changed, so that session tickets stay valid.
func forAuthorities(base *tls.Config, pool func() *x509.CertPool) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	var mu sync.Mutex // guards current
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

// certificateForName returns a function that selects the serving certificate for the server name that the client
// requests (SNI): an exact match from all, otherwise a wildcard match for the first label, otherwise usual. It
// returns an error if one of the certificates cannot be read.
func (s *Server) certificateForName(usual *pki.Files, all []NamedCertificate) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
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
