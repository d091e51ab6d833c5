package joindiscovery

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CertsSecret is the Secret from which additional control plane nodes download the shared
// certificates and keys. The name and format are those of kubeadm. Its values are encrypted with
// the certificate key, which an administrator passes to join.
const CertsSecret = "kubeadm-certs"

// certsTTL is how long the Secret with the shared certificates exists, because the bootstrap token that owns it then
// expires.
const certsTTL = 2 * time.Hour

// CertificateKey is the AES-256 key that encrypts the values of CertsSecret.
type CertificateKey [32]byte

// NewCertificateKey generates a random key.
func NewCertificateKey() CertificateKey {
	var k CertificateKey
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// ParseCertificateKey parses the hexadecimal form of a key.
func ParseCertificateKey(text string) (CertificateKey, error) {
	var k CertificateKey
	raw, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != len(k) {
		return k, fmt.Errorf("the certificate key must have %d hexadecimal digits", 2*len(k))
	}
	copy(k[:], raw)
	return k, nil
}

// String returns the key in hexadecimal form.
func (k CertificateKey) String() string { return hex.EncodeToString(k[:]) }

// cipher returns AES-GCM with the key.
func (k CertificateKey) cipher() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// SharedFiles returns the files below the PKI directory that all control plane nodes of a cluster
// share. The last one, encryption.yaml, does not exist in kubeadm. It is shared because Secrets are
// always encrypted at rest.
func SharedFiles() []string {
	return []string{
		"ca.crt", "ca.key", "sa.key", "sa.pub", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key", "encryption.yaml",
	}
}

// secretKey returns the key in the Secret for a file of SharedFiles.
func secretKey(file string) string { return strings.ReplaceAll(file, "/", "-") }

// SealCerts encrypts the files, named as in SharedFiles, into a Secret. The Secret is deleted
// together with owner, which is the Secret of a bootstrap token.
func SealCerts(files map[string][]byte, k CertificateKey, owner *corev1.Secret) (*corev1.Secret, error) {
	gcm, err := k.cipher()
	if err != nil {
		return nil, fmt.Errorf("encrypting certificates: %w", err)
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: CertsSecret, Namespace: metav1.NamespaceSystem, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Secret", Name: owner.Name, UID: owner.UID,
		}}},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{},
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		nonce := make([]byte, gcm.NonceSize())
		_, _ = rand.Read(nonce) // never fails
		s.Data[secretKey(name)] = gcm.Seal(nonce, nonce, files[name], nil)
	}
	return s, nil
}

// OpenCerts decrypts the files of the Secret, named as in SharedFiles. It is an error if one is missing, or if k is not
// the key with which they were encrypted.
func OpenCerts(s *corev1.Secret, k CertificateKey) (map[string][]byte, error) {
	gcm, err := k.cipher()
	if err != nil {
		return nil, fmt.Errorf("decrypting certificates: %w", err)
	}
	files := map[string][]byte{}
	for _, name := range SharedFiles() {
		sealed, ok := s.Data[secretKey(name)]
		if !ok {
			return nil, fmt.Errorf("Secret %s has no %s: upload all certificates with `hyperkube init --upload-certs` on a control plane node", CertsSecret, secretKey(name))
		}
		if len(sealed) < gcm.NonceSize() {
			return nil, fmt.Errorf("%s in Secret %s is too short", secretKey(name), CertsSecret)
		}
		nonce, sealed := sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():]
		if files[name], err = gcm.Open(nil, nonce, sealed, nil); err != nil {
			return nil, errors.New("the certificate key is not the one that encrypted the uploaded certificates")
		}
	}
	return files, nil
}

// CertsToken returns a token that has no usages. Its expiration deletes the Secret of the
// certificates.
func CertsToken(now time.Time) *Record {
	return &Record{Token: NewToken(), Expires: now.Add(certsTTL), Description: "Proxy for managing TTL for the kubeadm-certs secret"}
}
