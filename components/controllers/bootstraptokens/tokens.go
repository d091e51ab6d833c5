// Package bootstraptokens looks after the tokens with which machines join a
// cluster: it deletes them when they expire, and signs the cluster's public
// kubeconfig with each, so that a machine that has a token can tell whether it
// talks to the cluster that it means.
//
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package bootstraptokens

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const namePrefix = "bootstrap-token-"

// isToken tells whether a Secret is a token.
func isToken(s *corev1.Secret) bool {
	return s.Namespace == metav1.NamespaceSystem && s.Type == corev1.SecretTypeBootstrapToken
}

// left tells how long a token is good; ok is false if it is for ever. One whose
// expiration nobody can read has expired.
func left(s *corev1.Secret, now time.Time) (d time.Duration, ok bool) {
	text := string(s.Data["expiration"])
	if text == "" {
		return 0, false
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, true
	}
	return max(0, at.Sub(now)), true
}

// signing returns the parts of a token that is to sign.
func signing(s *corev1.Secret, now time.Time) (id, secret string, ok bool) {
	id, secret = string(s.Data["token-id"]), string(s.Data["token-secret"])
	if !isToken(s) || id == "" || secret == "" || strings.TrimPrefix(s.Name, namePrefix) != id || s.Name == id {
		return "", "", false
	}
	if d, expires := left(s, now); expires && d == 0 {
		return "", "", false
	}
	return id, secret, string(s.Data["usage-bootstrap-signing"]) == "true"
}
