package tokens

import (
	"context"
	"crypto"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// SecretSigner signs the tokens of Secrets of type kubernetes.io/service-account-token, for the
// controller that manages these Secrets. It is safe for concurrent use.
type SecretSigner struct{ signer jose.Signer }

// NewSecretSigner creates a signer with key, which must be one of the keys that the API server verifies tokens with.
// It returns an error if the type of the key is not supported.
func NewSecretSigner(key crypto.Signer) (*SecretSigner, error) {
	signer, err := newSigner(key)
	if err != nil {
		return nil, err
	}
	return &SecretSigner{signer: signer}, nil
}

// Sign creates a token of the service account sa for the Secret secret. The token does not expire,
// but is only valid as long as the Secret contains it.
func (s *SecretSigner) Sign(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	c := claims{
		Claims: jwt.Claims{Issuer: legacyIssuer, Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name)},
		legacyClaims: legacyClaims{
			LegacyNamespace: sa.Namespace,
			LegacySecret:    secret.Name,
			LegacyName:      sa.Name,
			LegacyUID:       string(sa.UID),
		},
	}
	token, err := jwt.Signed(s.signer).Claims(c).Serialize()
	if err != nil {
		return "", fmt.Errorf("signing token of a Secret: %w", err)
	}
	return token, nil
}

// checkLegacy verifies a token that is stored in a Secret, whose signature is valid and whose claims are c: the
// Secret must still contain the token, the service account must exist with the same UID, neither may be in deletion,
// and the Secret must not have the label InvalidSinceLabel. It records the use of the token.
func (v *Verifier) checkLegacy(ctx context.Context, token string, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	switch {
	case c.LegacyNamespace == "":
		return nil, errors.New("namespace claim is missing")
	case c.LegacySecret == "":
		return nil, errors.New("secretName claim is missing")
	case c.LegacyName == "":
		return nil, errors.New("serviceAccountName claim is missing")
	case c.LegacyUID == "":
		return nil, errors.New("serviceAccountUID claim is missing")
	case c.Subject != serviceaccount.MakeUsername(c.LegacyNamespace, c.LegacyName):
		return nil, errors.New("sub claim is invalid")
	}
	secret, err := v.cfg.Objects.Secret(ctx, c.LegacyNamespace, c.LegacySecret)
	if err != nil || secret.DeletionTimestamp != nil {
		return nil, errInvalidated
	}
	if subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) != 1 {
		return nil, errors.New("token does not match server's copy")
	}
	sa, err := v.serviceAccount(ctx, c.LegacyNamespace, c.LegacyName, c.LegacyUID)
	if err != nil || sa.DeletionTimestamp != nil {
		return nil, errInvalidated
	}
	if err := v.cfg.Usage.recordSecret(ctx, secret, sa); err != nil {
		return nil, err
	}
	return &serviceaccount.ServiceAccountInfo{Namespace: c.LegacyNamespace, Name: c.LegacyName, UID: c.LegacyUID}, nil
}
