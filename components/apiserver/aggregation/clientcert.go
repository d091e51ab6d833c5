package aggregation

import (
	"crypto/tls"
	"errors"

	"hyperkube/internal/pki"
)

// ClientCert returns a function that returns the certificate of two files,
// which it reads again when they have changed. The first read is made now.
func ClientCert(certFile, keyFile string) (func() (*tls.Certificate, error), error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("the front proxy's client certificate takes a certificate and a key")
	}
	files := &pki.Files{What: "reading the front proxy's client certificate", CertFile: certFile, KeyFile: keyFile}
	_, err := files.Certificate()
	return files.Certificate, err
}
