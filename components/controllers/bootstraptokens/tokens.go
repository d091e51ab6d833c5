// Package bootstraptokens manages the tokens with which machines join a cluster. It deletes expired
// tokens, and signs the cluster's public kubeconfig with each token, so that a machine that has a
// token can verify that it joins the intended cluster.
//
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package bootstraptokens

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namePrefix is the prefix of the names of Secrets with bootstrap tokens. The ID of the token follows.
const namePrefix = "bootstrap-token-"

// isToken reports whether a Secret contains a bootstrap token: it is in kube-system and has the type for tokens.
func isToken(s *corev1.Secret) bool {
	return s.Namespace == metav1.NamespaceSystem && s.Type == corev1.SecretTypeBootstrapToken
}

// remainingLifetime returns how long a token remains valid, or 0 if it has expired or its expiration is invalid. ok is
// false if the token does not expire.
func remainingLifetime(s *corev1.Secret, now time.Time) (d time.Duration, ok bool) {
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

// signingToken returns the ID and secret of the token in a Secret. ok is false if the token is invalid, has expired, or
// does not allow signing.
func signingToken(s *corev1.Secret, now time.Time) (id, secret string, ok bool) {
	id, secret = string(s.Data["token-id"]), string(s.Data["token-secret"])
	if !isToken(s) || id == "" || secret == "" || strings.TrimPrefix(s.Name, namePrefix) != id || s.Name == id {
		return "", "", false
	}
	if d, expires := remainingLifetime(s, now); expires && d == 0 {
		return "", "", false
	}
	return id, secret, string(s.Data["usage-bootstrap-signing"]) == "true"
}
