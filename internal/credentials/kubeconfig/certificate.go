package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
)

// ClientCertificate returns the client certificate, in PEM, of the current context of the kubeconfig at path. It
// returns an error if there is no current context, or if the certificate is not embedded in the file.
func ClientCertificate(path string) ([]byte, error) {
	cert, _, err := ClientPair(path)
	return cert, err
}

// ClientPair is like ClientCertificate and also returns the key, in PEM, or nil if the file does not contain it.
func ClientPair(path string) (cert, key []byte, err error) {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading kubeconfig %s: %w", path, err)
	}
	if context := c.Contexts[c.CurrentContext]; context != nil {
		if user := c.AuthInfos[context.AuthInfo]; user != nil && len(user.ClientCertificateData) > 0 {
			return user.ClientCertificateData, user.ClientKeyData, nil
		}
	}
	return nil, nil, fmt.Errorf("reading kubeconfig %s: %w", path, errNoCertificate)
}

var errNoCertificate = errors.New("current context has no embedded client certificate")

// ReplaceCertificate replaces the client certificate and key, in PEM, of all users in the file whose embedded
// certificate is old, and reports whether there are any; otherwise it does not write the file. It is used when
// certificates are renewed. The rest of the file is not changed. An empty old matches no user, and a missing file has
// none.
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
