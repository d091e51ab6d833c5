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

	"hyperkube/internal/atomicfile"
)

// MissingError names certificates that are not there, and that only an authority can sign
// whose key is kept elsewhere.
type MissingError struct {
	// Files are those of the certificates.
	Files []string
}

func (e *MissingError) Error() string {
	return "the key of their authority is not here, and they are not, either, with their keys: " + strings.Join(e.Files, ", ")
}

// requestType is that of a PEM block.
const requestType = "CERTIFICATE REQUEST"

// Request makes a request for a certificate as spec has it, in PEM, to be signed elsewhere:
// with the key in keyPEM, or a new one where that is empty. It returns the key, too.
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
		return nil, nil, fmt.Errorf("making a request for %q: %w", spec.CommonName, err)
	}
	return keyPEM, pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der}), nil
}

// Requests writes, for each certificate that Ensure makes for cfg, a key into dir unless
// there is one, and a request beside it, with the ending .csr. It returns the names of the
// certificates' files without their endings.
func Requests(dir string, cfg Config) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of certificates: %w", err)
	}
	var names []string
	var files []atomicfile.File
	for _, l := range new(Set).leaves(cfg) {
		base := filepath.Join(dir, l.file)
		old, err := os.ReadFile(base + ".key")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading a key: %w", err)
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
		return nil, fmt.Errorf("keeping requests for certificates: %w", err)
	}
	return names, nil
}

// Bring keeps a pair in base.crt and base.key that somebody else has made.
func Bring(base string, certPEM, keyPEM []byte) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return fmt.Errorf("making the directory of a certificate: %w", err)
	}
	if err := atomicfile.Write(
		atomicfile.File{Path: base + ".key", Data: keyPEM, Mode: 0o600},
		atomicfile.File{Path: base + ".crt", Data: certPEM, Mode: 0o644}); err != nil {
		return fmt.Errorf("keeping a certificate: %w", err)
	}
	return nil
}
