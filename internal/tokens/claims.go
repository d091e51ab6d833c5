// Package tokens makes and verifies the JSON web tokens of service accounts.
//
// A token is good while its signature, issuer, audience and times are, and
// while what it is bound to exists: the service account always, and the pod,
// Secret or node that it was asked for. The former is remembered for each
// token, for a signature costs ten times what all else does; the latter is
// looked up in the informers every time, so that a token ends with its pod.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
package tokens

import (
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// claims are all that a token says.
type claims struct {
	jwt.Claims
	// Audience stands in for that of Claims.
	Audience   audience `json:"aud,omitempty"`
	Kubernetes *bound   `json:"kubernetes.io,omitempty"`
	legacyClaims
}

// audience is written as a list even when it is one alone, as kube-apiserver
// does: who verifies tokens may look for nothing else. Both forms are read.
type audience []string

// MarshalJSON as json.Marshaler.
func (a audience) MarshalJSON() ([]byte, error) { return json.Marshal([]string(a)) }

// UnmarshalJSON as json.Unmarshaler.
func (a *audience) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, (*jwt.Audience)(a)) }

// bound names what a token belongs to.
type bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	ServiceAccount ref              `json:"serviceaccount,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type ref struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// legacyIssuer is the issuer of the tokens that were kept in Secrets; they
// never expire and live as long as their Secret.
const legacyIssuer = "kubernetes/serviceaccount"

// legacyClaims are those of a token in a Secret.
type legacyClaims struct {
	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	LegacySecret    string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	LegacyName      string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	LegacyUID       string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

// binding is what a new token is bound to. ServiceAccount is set, of the
// others at most one, except that a pod brings its node.
type binding struct {
	ServiceAccount *corev1.ServiceAccount
	Pod            *corev1.Pod
	Secret         *corev1.Secret
	Node           *corev1.Node
}

// newClaims says what a new token says. warnAfter zero means never.
func newClaims(issuer string, b binding, now time.Time, expires, warnAfter time.Duration, audiences []string) claims {
	sa := b.ServiceAccount
	c := claims{
		Claims: jwt.Claims{
			Issuer:    issuer,
			Subject:   serviceaccount.MakeUsername(sa.Namespace, sa.Name),
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now),
			Expiry:    jwt.NewNumericDate(now.Add(expires)),
			ID:        uuid.NewString(),
		},
		Audience: audiences,
		Kubernetes: &bound{
			Namespace:      sa.Namespace,
			ServiceAccount: ref{Name: sa.Name, UID: string(sa.UID)},
		},
	}
	if b.Pod != nil {
		c.Kubernetes.Pod = &ref{Name: b.Pod.Name, UID: string(b.Pod.UID)}
	}
	if b.Secret != nil {
		c.Kubernetes.Secret = &ref{Name: b.Secret.Name, UID: string(b.Secret.UID)}
	}
	if b.Node != nil {
		c.Kubernetes.Node = &ref{Name: b.Node.Name, UID: string(b.Node.UID)}
	}
	if warnAfter != 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(warnAfter))
	}
	return c
}

// warnAfter is from when on a token that lives longer than it should is stale;
// zero: never.
func (c *claims) warnAfter() time.Time {
	if c.Kubernetes == nil || c.Kubernetes.WarnAfter == nil || *c.Kubernetes.WarnAfter == 0 {
		return time.Time{}
	}
	return c.Kubernetes.WarnAfter.Time()
}
