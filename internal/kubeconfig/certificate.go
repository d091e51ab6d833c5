package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
)

// ClientCertificate is the certificate, in PEM, with which the current context of a
// kubeconfig enters. It must be in the file itself.
func ClientCertificate(path string) ([]byte, error) {
	cert, _, err := ClientPair(path)
	return cert, err
}

// ClientPair is ClientCertificate with its key, which is nil where it is not in the file.
func ClientPair(path string) (cert, key []byte, err error) {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err)
	}
	if context := c.Contexts[c.CurrentContext]; context != nil {
		if user := c.AuthInfos[context.AuthInfo]; user != nil && len(user.ClientCertificateData) > 0 {
			return user.ClientCertificateData, user.ClientKeyData, nil
		}
	}
	return nil, nil, fmt.Errorf("reading the kubeconfig %s: %w", path, errNoCertificate)
}

var errNoCertificate = errors.New("its current context has no certificate of a client in it")

// ReplaceCertificate gives another certificate and key, in PEM, to all users of the
// file that have the old one, and tells whether any has. All else stays as it is.
func (t Target) ReplaceCertificate(old, cert, key []byte) (bool, error) {
	c, err := t.load()
	if err != nil {
		return false, err
	}
	found := false
	for _, user := range c.AuthInfos {
		if len(old) > 0 && bytes.Equal(bytes.TrimSpace(user.ClientCertificateData), bytes.TrimSpace(old)) {
			user.ClientCertificateData, user.ClientKeyData = cert, key
			found = true
		}
	}
	if !found {
		return false, nil
	}
	return true, t.save(c)
}
