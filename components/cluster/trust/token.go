// Package trust is how a machine and a cluster that have never met come to
// trust each other: by a token that a person carries from one to the other, and
// by the hash of the cluster's authority.
//
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package trust

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

// NodeGroup is whose members may ask for the certificate of a node. It has
// kubeadm's name, so that either's tokens are good for the other.
const NodeGroup = "system:bootstrappers:kubeadm:default-node-token"

// What a token may be used for, without the prefix that its Secret has.
const (
	Signing        = "signing"
	Authentication = "authentication"
)

// DefaultTTL is how long a token lives when nobody says otherwise.
const DefaultTTL = 24 * time.Hour

const (
	secretPrefix = "bootstrap-token-"
	usagePrefix  = "usage-bootstrap-"
	alphabet     = "0123456789abcdefghijklmnopqrstuvwxyz"
	idLength     = 6
	keyLength    = 16
)

// Token is a bootstrap token.
type Token struct{ ID, Key string }

var tokenPattern = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)

// ParseToken reads a token as people carry it: ID.KEY.
func ParseToken(text string) (Token, error) {
	m := tokenPattern.FindStringSubmatch(text)
	if m == nil {
		return Token{}, fmt.Errorf("the bootstrap token %q is not of the form %q", text, tokenPattern)
	}
	return Token{ID: m[1], Key: m[2]}, nil
}

// NewToken makes a token that nobody can guess.
func NewToken() Token { return Token{ID: random(idLength), Key: random(keyLength)} }

// random returns n characters of the alphabet, each as likely as any other.
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

// String is the token as people carry it.
func (t Token) String() string { return t.ID + "." + t.Key }

// SecretName is the name of the Secret that holds the token of an ID.
func SecretName(id string) string { return secretPrefix + id }

// Record is a token as the cluster keeps it.
type Record struct {
	Token
	// Expires is when it ends; zero: never.
	Expires time.Time
	// Usages are some of Signing and Authentication.
	Usages []string
	// Groups are those of whoever comes with the token, besides
	// system:bootstrappers.
	Groups      []string
	Description string
}

// Validate tells what is wrong with a record.
func (r *Record) Validate() error {
	if len(r.Usages) == 0 {
		return errors.New("a token needs a usage")
	}
	for _, u := range r.Usages {
		if u != Signing && u != Authentication {
			return fmt.Errorf("unknown usage %q: there are %s and %s", u, Signing, Authentication)
		}
	}
	for _, g := range r.Groups {
		if !groupPattern.MatchString(g) {
			return fmt.Errorf("the group %q is not of the form %q", g, groupPattern)
		}
	}
	return nil
}

var groupPattern = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)

// Secret is how the cluster keeps a record.
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

// FromSecret reads a record, or says what is wrong with the Secret.
func FromSecret(s *corev1.Secret) (*Record, error) {
	if s.Type != corev1.SecretTypeBootstrapToken {
		return nil, fmt.Errorf("secret %s is no bootstrap token", s.Name)
	}
	token, err := ParseToken(string(s.Data["token-id"]) + "." + string(s.Data["token-secret"]))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", s.Name, err)
	}
	if s.Name != SecretName(token.ID) {
		return nil, fmt.Errorf("secret %s holds the token of another name, %s", s.Name, token.ID)
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
