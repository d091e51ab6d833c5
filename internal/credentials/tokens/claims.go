// Package tokens issues and verifies the JSON Web Tokens of service accounts.
//
// A token is valid while its signature, issuer, audience and times are valid, and while the objects
// that it is bound to exist: always the service account, and optionally a pod, Secret or node. The
// result of the signature verification is cached per token, because it takes ten times as long as
// all other checks. The bound objects are read from informers for each request, so that a token
// becomes invalid together with its pod.
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

// claims are all claims in the payload of a service account token, of a bound or a legacy one.
type claims struct {
	jwt.Claims
	// Audience replaces the field of jwt.Claims.
	Audience   audience `json:"aud,omitempty"`
	Kubernetes *bound   `json:"kubernetes.io,omitempty"`
	legacyClaims
}

// audience is the list of audiences of a token. It is always encoded as a list, even with one
// element, as in kube-apiserver, because verifiers may expect a list. Decoding also accepts a
// single string.
type audience []string

// MarshalJSON returns a JSON list.
func (a audience) MarshalJSON() ([]byte, error) { return json.Marshal([]string(a)) }

// UnmarshalJSON accepts a JSON list or a single string.
func (a *audience) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, (*jwt.Audience)(a)) }

// bound is the claim kubernetes.io of a token: the service account, and the Pod, Secret or Node whose deletion
// invalidates the token.
type bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	ServiceAccount ref              `json:"serviceaccount,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// ref is the name and UID of an object that a token is bound to. The UID makes the token invalid if the object is
// deleted and created again.
type ref struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// legacyIssuer is the issuer of tokens that are stored in Secrets. They do not expire and are valid
// as long as their Secret exists.
const legacyIssuer = "kubernetes/serviceaccount"

// legacyClaims are the claims of a token that is stored in a Secret. They are empty in bound
// tokens.
type legacyClaims struct {
	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	LegacySecret    string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	LegacyName      string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	LegacyUID       string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

// boundObjects contains the objects that a new token is bound to. ServiceAccount is always set. At most one of the
// others is set, except that Node is also set for a pod that is assigned to a node.
type boundObjects struct {
	ServiceAccount *corev1.ServiceAccount
	Pod            *corev1.Pod
	Secret         *corev1.Secret
	Node           *corev1.Node
}

// newClaims returns the claims of a new token that is valid from now for the duration expires and has a random ID.
// warnAfter is the age after which its use is recorded as stale; zero means never.
func newClaims(issuer string, b boundObjects, now time.Time, expires, warnAfter time.Duration, audiences []string) claims {
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

// warnAfter returns the time after which the use of a token with an extended lifetime is recorded
// as stale, or zero if there is none.
func (c *claims) warnAfter() time.Time {
	if c.Kubernetes == nil || c.Kubernetes.WarnAfter == nil || *c.Kubernetes.WarnAfter == 0 {
		return time.Time{}
	}
	return c.Kubernetes.WarnAfter.Time()
}
