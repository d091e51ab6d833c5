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

// publicKey is a key for verifying tokens, with its key ID and the only algorithm it is used with.
type publicKey struct {
	id  string
	alg jose.SignatureAlgorithm
	key crypto.PublicKey
}

// KeySet contains the keys for verifying tokens. It is immutable.
type KeySet struct {
	keys []publicKey
	byID map[string]int
}

// newKeySet creates a KeySet from RSA and ECDSA public keys. Duplicates are ignored. It returns an error for keys of
// other types and curves.
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

// LoadKeySet loads the keys of --service-account-key-file: PEM files that contain one or more public keys, private
// keys or certificates. It returns an error if a file cannot be read or there is no key.
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
		return nil, errors.New("no service account key configured")
	}
	return newKeySet(keys...)
}

// LoadSigner loads the private key of --service-account-signing-key-file, a PEM file. It returns an error if the file
// cannot be read or the key cannot sign.
func LoadSigner(file string) (crypto.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading service account signing key: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("parsing service account signing key %s: %w", file, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("key in %s cannot be used for signing", file)
	}
	return signer, nil
}

// candidates returns the keys that may have signed a token with the key ID id in its header: the
// key with this ID, or all keys if there is none, because old tokens have no key ID.
func (s *KeySet) candidates(id string) []publicKey {
	if i, ok := s.byID[id]; ok {
		return s.keys[i : i+1]
	}
	return s.keys
}

// jwks returns the keys as the JSON Web Key Set that Discovery serves.
func (s *KeySet) jwks() jose.JSONWebKeySet {
	var doc jose.JSONWebKeySet
	for _, k := range s.keys {
		doc.Keys = append(doc.Keys, jose.JSONWebKey{Key: k.key, KeyID: k.id, Algorithm: string(k.alg), Use: "sig"})
	}
	return doc
}

// algorithm returns the only signature algorithm that is allowed for a public key: RS256 for RSA, and ES256, ES384 or
// ES512 for ECDSA, depending on the curve. Other keys are an error.
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
		return "", fmt.Errorf("service account keys with curve %s are not supported", key.Curve.Params().Name)
	}
	return "", fmt.Errorf("service account keys of type %T are not supported", key)
}

// keyID returns the key ID of a public key: the SHA-256 hash of its DER form. Upstream derives it in the same way, so
// that tokens and discovery documents of both are compatible.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encoding service account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
