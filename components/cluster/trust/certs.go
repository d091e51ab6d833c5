package trust

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

// CertsSecret is the Secret from which further masters get the keys that all
// masters share, as kubeadm has it. Its values are encrypted with a key that a
// person carries.
const CertsSecret = "kubeadm-certs"

// certsTTL is how long the Secret lives.
const certsTTL = 2 * time.Hour

// CertificateKey encrypts CertsSecret: AES-256.
type CertificateKey [32]byte

// NewCertificateKey makes a key that nobody can guess.
func NewCertificateKey() CertificateKey {
	var k CertificateKey
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// ParseCertificateKey reads a key as people carry it.
func ParseCertificateKey(text string) (CertificateKey, error) {
	var k CertificateKey
	raw, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != len(k) {
		return k, fmt.Errorf("a certificate key is %d hexadecimal digits", 2*len(k))
	}
	copy(k[:], raw)
	return k, nil
}

// String is the key as people carry it.
func (k CertificateKey) String() string { return hex.EncodeToString(k[:]) }

func (k CertificateKey) cipher() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// SharedFiles are those below the folder of keys and certificates that all
// masters of a cluster have alike. The last is not kubeadm's: Secrets are
// encrypted at rest from the first.
func SharedFiles() []string {
	return []string{
		"ca.crt", "ca.key", "sa.key", "sa.pub", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key", "encryption.yaml",
	}
}

// secretKey is the name that a file has in the Secret.
func secretKey(file string) string { return strings.ReplaceAll(file, "/", "-") }

// SealCerts makes the Secret of the files, by SharedFiles, that lives as long as
// the token that owns it.
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

// OpenCerts returns the files of the Secret, by SharedFiles. All must be there.
func OpenCerts(s *corev1.Secret, k CertificateKey) (map[string][]byte, error) {
	gcm, err := k.cipher()
	if err != nil {
		return nil, fmt.Errorf("decrypting certificates: %w", err)
	}
	files := map[string][]byte{}
	for _, name := range SharedFiles() {
		sealed, ok := s.Data[secretKey(name)]
		if !ok {
			return nil, fmt.Errorf("the Secret %s has no %s: let a master upload all with `hyperkube init --upload-certs`", CertsSecret, secretKey(name))
		}
		if len(sealed) < gcm.NonceSize() {
			return nil, fmt.Errorf("%s of the Secret %s is too short", secretKey(name), CertsSecret)
		}
		nonce, sealed := sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():]
		if files[name], err = gcm.Open(nil, nonce, sealed, nil); err != nil {
			return nil, errors.New("the certificate key is not the one that the certificates were uploaded with")
		}
	}
	return files, nil
}

// CertsToken is the token that does nothing but end together with the Secret
// of the certificates.
func CertsToken(now time.Time) *Record {
	return &Record{Token: NewToken(), Expires: now.Add(certsTTL), Description: "Proxy for managing TTL for the kubeadm-certs secret"}
}
