package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/util/keyutil"
)

// publicKey is a key that tokens are verified by.
type publicKey struct {
	id  string
	alg jose.SignatureAlgorithm
	key crypto.PublicKey
}

// KeySet holds the keys that tokens are verified by. It is not changed after
// it was made.
type KeySet struct {
	keys []publicKey
	byID map[string]int
}

// newKeySet makes a set of RSA and ECDSA public keys. The same key given twice
// counts once.
func newKeySet(keys ...crypto.PublicKey) (*KeySet, error) {
	set := &KeySet{byID: map[string]int{}}
	for _, key := range keys {
		alg, err := algorithm(key)
		if err != nil {
			return nil, err
		}
		id, err := keyID(key)
		if err != nil {
			return nil, err
		}
		if _, twice := set.byID[id]; twice {
			continue
		}
		set.byID[id] = len(set.keys)
		set.keys = append(set.keys, publicKey{id: id, alg: alg, key: key})
	}
	return set, nil
}

// LoadKeySet reads the keys of --service-account-key-file: PEM files of public
// or private keys or certificates, several in a file if need be.
func LoadKeySet(files ...string) (*KeySet, error) {
	var keys []crypto.PublicKey
	for _, file := range files {
		got, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading service account keys: %w", err)
		}
		for _, key := range got {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no service account key is given")
	}
	return newKeySet(keys...)
}

// LoadSigner reads the key of --service-account-signing-key-file.
func LoadSigner(file string) (crypto.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the signing key of service accounts: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("reading the signing key of service accounts in %s: %w", file, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key in %s cannot sign", file)
	}
	return signer, nil
}

// with returns the keys that may have signed a token, by the identifier in its
// header, which old tokens do not have.
func (s *KeySet) with(id string) []publicKey {
	if i, ok := s.byID[id]; ok {
		return s.keys[i : i+1]
	}
	return s.keys
}

// jwks is the set as a public document.
func (s *KeySet) jwks() jose.JSONWebKeySet {
	var doc jose.JSONWebKeySet
	for _, k := range s.keys {
		doc.Keys = append(doc.Keys, jose.JSONWebKey{Key: k.key, KeyID: k.id, Algorithm: string(k.alg), Use: "sig"})
	}
	return doc
}

// algorithm is the only one that a key is used with.
func algorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve.Params().BitSize {
		case 256:
			return jose.ES256, nil
		case 384:
			return jose.ES384, nil
		case 521:
			return jose.ES512, nil
		}
		return "", fmt.Errorf("service account keys cannot be on the curve %s", key.Curve.Params().Name)
	}
	return "", fmt.Errorf("service account keys cannot be of type %T", key)
}

// keyID is the same that upstream derives, so that tokens and their issuer's
// public documents fit together whoever made them.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encoding a service account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
