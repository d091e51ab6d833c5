package aggregation

import (
	"crypto/tls"
	"errors"

	"hyperkube/internal/credentials/pki"
)

// ClientCert returns a function that returns the certificate of two files. The function reads the
// files again when they have changed. ClientCert itself reads them once.
func ClientCert(certFile, keyFile string) (func() (*tls.Certificate, error), error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("the front proxy's client certificate requires a certificate and a key")
	}
	files := &pki.Files{Context: "reading the front proxy's client certificate", CertFile: certFile, KeyFile: keyFile}
	_, err := files.Certificate()
	return files.Certificate, err
}
