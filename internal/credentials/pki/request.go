package pki

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hyperkube/internal/host/atomicfile"
)

// MissingError is returned by Ensure. It lists missing certificates that cannot be created because
// the key of their CA is not available. The operator must have them signed elsewhere.
type MissingError struct {
	// Files are the paths of the missing certificates.
	Files []string
}

// Error returns a text with the paths of all missing certificates.
func (e *MissingError) Error() string {
	return "certificates are missing and the key of their certificate authority is not available: " + strings.Join(e.Files, ", ")
}

// requestType is the PEM block type of a certificate signing request.
const requestType = "CERTIFICATE REQUEST"

// Request creates a certificate signing request for spec, in PEM, and returns it with its key. It uses the key in
// keyPEM, or generates one if keyPEM is empty. The request contains the names and addresses of spec, but not its
// usages and validity, which the CA determines.
func Request(keyPEM []byte, spec Spec) (key, request []byte, err error) {
	if len(keyPEM) == 0 {
		made, err := newKey()
		if err != nil {
			return nil, nil, err
		}
		if keyPEM, err = marshalKey(made); err != nil {
			return nil, nil, err
		}
	}
	signer, err := parseKey(keyPEM)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: spec.CommonName, Organization: spec.Organizations},
		DNSNames: spec.DNSNames, IPAddresses: spec.IPs,
	}, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("creating certificate signing request for %q: %w", spec.CommonName, err)
	}
	return keyPEM, pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der}), nil
}

// Requests writes a key and a certificate signing request (.csr) to dir for each certificate that Ensure would create
// for cfg, except for CAs, so that a CA whose key is elsewhere can sign them. Existing keys are kept, existing
// requests replaced. It returns the names of the certificate files without extension, relative to dir.
func Requests(dir string, cfg Config) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o755); err != nil {
		return nil, fmt.Errorf("creating certificates directory: %w", err)
	}
	var names []string
	var files []atomicfile.File
	for _, l := range new(Set).leaves(cfg) {
		base := filepath.Join(dir, l.file)
		old, err := os.ReadFile(base + ".key")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading key: %w", err)
		}
		key, request, err := Request(old, l.spec)
		if err != nil {
			return nil, fmt.Errorf("%s.key: %w", base, err)
		}
		if len(old) == 0 {
			files = append(files, atomicfile.File{Path: base + ".key", Data: key, Mode: 0o600})
		}
		files = append(files, atomicfile.File{Path: base + ".csr", Data: request, Mode: 0o644})
		names = append(names, l.file)
	}
	if err := atomicfile.Write(files...); err != nil {
		return nil, fmt.Errorf("writing certificate signing requests: %w", err)
	}
	return names, nil
}

// WritePair writes a certificate and key that were created elsewhere, in PEM, to base.crt and base.key (mode 0600),
// and creates the directory. It does not check them.
func WritePair(base string, certPEM, keyPEM []byte) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return fmt.Errorf("creating certificate directory: %w", err)
	}
	if err := atomicfile.Write(
		atomicfile.File{Path: base + ".key", Data: keyPEM, Mode: 0o600},
		atomicfile.File{Path: base + ".crt", Data: certPEM, Mode: 0o644}); err != nil {
		return fmt.Errorf("writing certificate: %w", err)
	}
	return nil
}
