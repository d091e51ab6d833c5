package aggregation

import (
	"crypto/tls"
	"errors"

	"hyperkube/internal/credentials/pki"
)

// ClientCert returns a function for Config.ClientCert that returns the certificate in two files and
// reads them again when they have changed. It returns an error if the files cannot be read now.
func ClientCert(certFile, keyFile string) (func() (*tls.Certificate, error), error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("the front proxy's client certificate requires a certificate and a key")
	}
	files := &pki.Files{Context: "reading the front proxy's client certificate", CertFile: certFile, KeyFile: keyFile}
	_, err := files.Certificate()
	return files.Certificate, err
}
