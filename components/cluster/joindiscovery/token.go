// Package joindiscovery establishes trust between a cluster and a machine that joins it, with a
// bootstrap token and the hash of the cluster CA.
//
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package joindiscovery

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeGroup is the group whose members may request the certificate of a node. It has the name of
// kubeadm, so that hyperkube and kubeadm accept each other's tokens.
const NodeGroup = "system:bootstrappers:kubeadm:default-node-token"

// Usages of a bootstrap token: signing the cluster information, and authenticating a joining machine.
const (
	Signing        = "signing"
	Authentication = "authentication"
)

// DefaultTTL is the default lifetime of a bootstrap token.
const DefaultTTL = 24 * time.Hour

const (
	secretPrefix = "bootstrap-token-"
	usagePrefix  = "usage-bootstrap-"
	alphabet     = "0123456789abcdefghijklmnopqrstuvwxyz"
	idLength     = 6
	keyLength    = 16
)

// Token is a bootstrap token, which consists of a public ID of 6 characters and a secret key of 16.
type Token struct{ ID, Key string }

// tokenPattern matches the text form of a Token.
var tokenPattern = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)

// ParseToken parses a token of the form ID.KEY.
func ParseToken(text string) (Token, error) {
	m := tokenPattern.FindStringSubmatch(text)
	if m == nil {
		return Token{}, fmt.Errorf("the bootstrap token %q was not of the form %q", text, tokenPattern)
	}
	return Token{ID: m[1], Key: m[2]}, nil
}

// NewToken returns a random bootstrap token, which is not stored in the cluster.
func NewToken() Token { return Token{ID: random(idLength), Key: random(keyLength)} }

// random returns n random characters of the alphabet, uniformly distributed.
func random(n int) string {
	out := make([]byte, 0, n)
	limit := byte(256 / len(alphabet) * len(alphabet))
	for len(out) < n {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		for _, c := range b {
			if c < limit && len(out) < n {
				out = append(out, alphabet[int(c)%len(alphabet)])
			}
		}
	}
	return string(out)
}

// String returns the token in the form ID.KEY.
func (t Token) String() string { return t.ID + "." + t.Key }

// SecretName returns the name of the Secret for a token ID.
func SecretName(id string) string { return secretPrefix + id }

// Record is a bootstrap token with its expiration, usages and groups, as it is stored in a Secret of the cluster.
type Record struct {
	Token
	// Expires is the expiration time. The token never expires if it is zero.
	Expires time.Time
	// Usages contains Signing, Authentication or both.
	Usages []string
	// Groups are the groups of a client that authenticates with the token, in addition to
	// system:bootstrappers.
	Groups      []string
	Description string
}

// Validate returns an error if the usages or the groups of the token are invalid.
func (r *Record) Validate() error {
	if len(r.Usages) == 0 {
		return errors.New("a bootstrap token needs at least one usage")
	}
	for _, u := range r.Usages {
		if u != Signing && u != Authentication {
			return fmt.Errorf("unknown usage %q: valid options are %s and %s", u, Signing, Authentication)
		}
	}
	for _, g := range r.Groups {
		if !groupPattern.MatchString(g) {
			return fmt.Errorf("bootstrap group %q is invalid (must match %q)", g, groupPattern)
		}
	}
	return nil
}

// groupPattern matches the groups that a bootstrap token may have.
var groupPattern = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)

// Secret returns the Secret that stores the token.
func (r *Record) Secret() *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName(r.ID), Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		Data:       map[string][]byte{"token-id": []byte(r.ID), "token-secret": []byte(r.Key)},
	}
	if !r.Expires.IsZero() {
		s.Data["expiration"] = []byte(r.Expires.UTC().Format(time.RFC3339))
	}
	if r.Description != "" {
		s.Data["description"] = []byte(r.Description)
	}
	if len(r.Groups) > 0 {
		s.Data["auth-extra-groups"] = []byte(strings.Join(r.Groups, ","))
	}
	for _, u := range r.Usages {
		s.Data[usagePrefix+u] = []byte("true")
	}
	return s
}

// FromSecret reads a token from its Secret. It returns an error if the Secret is invalid. It does not check whether the
// token has expired.
func FromSecret(s *corev1.Secret) (*Record, error) {
	if s.Type != corev1.SecretTypeBootstrapToken {
		return nil, fmt.Errorf("secret %s is not a bootstrap token", s.Name)
	}
	token, err := ParseToken(string(s.Data["token-id"]) + "." + string(s.Data["token-secret"]))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", s.Name, err)
	}
	if s.Name != SecretName(token.ID) {
		return nil, fmt.Errorf("secret %s contains the token of another ID, %s", s.Name, token.ID)
	}
	r := &Record{Token: token, Description: string(s.Data["description"])}
	if text := string(s.Data["expiration"]); text != "" {
		if r.Expires, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, fmt.Errorf("secret %s: expiration: %w", s.Name, err)
		}
	}
	for key, value := range s.Data {
		if usage, ok := strings.CutPrefix(key, usagePrefix); ok && string(value) == "true" {
			r.Usages = append(r.Usages, usage)
		}
	}
	slices.Sort(r.Usages)
	if text := string(s.Data["auth-extra-groups"]); text != "" {
		r.Groups = strings.Split(text, ",")
	}
	return r, nil
}
