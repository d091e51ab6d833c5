package pki

import (
	"crypto"
	"errors"
	"fmt"
)

// NewCA creates a self-signed CA with the common name name and a new key, in memory.
func NewCA(name string) (*CA, error) { return newCA(name, nil) }

// ParseCA returns the CA with the certificate and key in PEM. It returns an error if they do not match, or the certificate is not that of a CA.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := ParseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing CA certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("parsing CA certificate: it is not the certificate of a CA")
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing CA key: %w", err)
	}
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(cert.PublicKey) {
		return nil, errors.New("parsing CA key: it does not match the certificate")
	}
	return &CA{Pair: Pair{Cert: cert, Key: key, CertPEM: certPEM, KeyPEM: keyPEM}}, nil
}
