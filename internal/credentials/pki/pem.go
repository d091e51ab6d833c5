package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/util/keyutil"
)

// certificateType, ecKeyType and publicKeyType are the types of PEM blocks.
const (
	certificateType = "CERTIFICATE"
	ecKeyType       = "EC PRIVATE KEY"
	publicKeyType   = "PUBLIC KEY"
)

// newPair returns the Pair of a new certificate and its key, with both in PEM. It has no files yet.
func newPair(cert *x509.Certificate, key crypto.Signer) (*Pair, error) {
	keyPEM, err := marshalKey(key)
	if err != nil {
		return nil, err
	}
	return &Pair{
		Cert:    cert,
		Key:     key,
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: cert.Raw}),
		KeyPEM:  keyPEM,
	}, nil
}

// marshalKey encodes a private key in PEM: an ECDSA key as "EC PRIVATE KEY", others as client-go does.
func marshalKey(key crypto.Signer) ([]byte, error) {
	if ec, ok := key.(*ecdsa.PrivateKey); ok {
		der, err := x509.MarshalECPrivateKey(ec)
		if err != nil {
			return nil, fmt.Errorf("encoding key: %w", err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: ecKeyType, Bytes: der}), nil
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %w", err)
	}
	return data, nil
}

// marshalPublic encodes a public key in PEM.
func marshalPublic(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicKeyType, Bytes: der}), nil
}

// loadPair loads a certificate and its key. A missing key file is not an error; Key is nil then. If the certificate
// file is missing, the error wraps fs.ErrNotExist. It is an error if the key does not match the certificate.
func loadPair(certFile, keyFile string) (*Pair, error) {
	p := &Pair{CertFile: certFile, KeyFile: keyFile}
	var err error
	if p.CertPEM, err = os.ReadFile(certFile); err != nil {
		return nil, err
	}
	if p.Cert, err = ParseCertificate(p.CertPEM); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	p.KeyPEM, err = os.ReadFile(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if p.Key, err = parseKey(p.KeyPEM); err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	pub, ok := p.Key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(p.Cert.PublicKey) {
		return nil, fmt.Errorf("%s does not match %s", keyFile, certFile)
	}
	return p, nil
}

// ParseCertificate parses the first certificate in PEM data, and skips other blocks before it. It returns an error if
// there is none.
func ParseCertificate(data []byte) (*x509.Certificate, error) {
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return nil, errors.New("no certificate found")
		}
		if block.Type == certificateType {
			return x509.ParseCertificate(block.Bytes)
		}
	}
}

// parseKey parses the private key in PEM data. It returns an error if there is none or it cannot sign.
func parseKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(bytes.TrimSpace(data))
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("key type %T cannot be used for signing", key)
	}
	return signer, nil
}
