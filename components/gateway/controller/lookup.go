package controller

import (
	"crypto/tls"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// lookup implements translate.Lookup with the informers. It is used by one goroutine.
type lookup struct {
	*sources
	// certificates are those that were parsed before, by namespace/name of the Secret.
	certificates map[string]parsed
}

// parsed is the certificate that was parsed from one version of a Secret, or the error.
type parsed struct {
	version     string // of the Secret
	certificate *tls.Certificate
	err         error
}

// Service implements translate.Lookup.
func (l *lookup) Service(namespace, name string) *corev1.Service {
	return get[corev1.Service](l.services, namespace, name)
}

// ConfigMap implements translate.Lookup.
func (l *lookup) ConfigMap(namespace, name string) *corev1.ConfigMap {
	return get[corev1.ConfigMap](l.configMaps, namespace, name)
}

// Namespace implements translate.Lookup.
func (l *lookup) Namespace(name string) *corev1.Namespace {
	return get[corev1.Namespace](l.namespaces, "", name)
}

var errNoKeyPair = errors.New("tls.crt and tls.key are not a certificate with its private key")

// Certificate implements translate.Lookup. It parses a Secret once for each version. The error for invalid content
// has no details, because they could contain a part of the key.
func (l *lookup) Certificate(namespace, name string) (*tls.Certificate, error) {
	key := namespace + "/" + name
	secret := get[corev1.Secret](l.secrets, namespace, name)
	if secret == nil {
		delete(l.certificates, key)
		return nil, nil
	}
	if p, ok := l.certificates[key]; ok && p.version == secret.ResourceVersion {
		return p.certificate, p.err
	}
	p := parsed{version: secret.ResourceVersion}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		p.err = errNoKeyPair // the cause could contain a part of the key
	} else {
		p.certificate = &pair
	}
	l.certificates[key] = p
	return p.certificate, p.err
}
