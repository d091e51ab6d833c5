package tokens

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
)

// minExpiration and the other constants are lifetimes of tokens, in seconds: the bounds of requests, the default,
// and how long the lifetime of tokens for volumes is extended.
const (
	minExpiration     = 10 * 60
	maxExpiration     = 1 << 32
	defaultExpiration = 60 * 60
	extendable        = 60*60 + 7 // requested by the volumes that admission adds to pods
	extended          = 365 * 86_400
)

// IssuerConfig configures an Issuer: the issuer name, key, audiences and lifetimes of its tokens.
type IssuerConfig struct {
	// Issuer is the first value of --service-account-issuer.
	Issuer string
	// Key is the signing key, of type RSA or ECDSA.
	Key crypto.Signer
	// Audiences are the audiences of tokens whose request names none: --api-audiences. If it is empty, the issuer is
	// used.
	Audiences []string
	// MaxExpiration is the maximum lifetime; longer requests are shortened with a warning. Zero means no limit. It
	// does not apply to ExtendExpiration.
	MaxExpiration time.Duration
	// ExtendExpiration extends the lifetime of tokens for the volumes that admission adds to pods
	// from an hour to a year, for clients that read their token only once.
	ExtendExpiration bool
	// Objects reads the objects that tokens are bound to. It must see all previous writes.
	Objects Getter
	// Now defaults to time.Now.
	Now func() time.Time
}

// Getter reads the objects that tokens are bound to. Errors are API errors, such as NotFound.
// Callers must not modify the returned objects.
type Getter interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// Issuer issues service account tokens in response to TokenRequests. Its methods are safe for
// concurrent use.
type Issuer struct {
	cfg    IssuerConfig
	signer jose.Signer
}

// NewIssuer validates cfg and returns an Issuer. Issuer, Key and Objects are required; empty Audiences are replaced
// by the issuer. It returns an error if the type of the key is not supported.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if cfg.Issuer == "" || cfg.Key == nil || cfg.Objects == nil {
		return nil, errors.New("creating service account token issuer: issuer, key and objects are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{cfg.Issuer}
	}
	signer, err := newSigner(cfg.Key)
	if err != nil {
		return nil, err
	}
	return &Issuer{cfg: cfg, signer: signer}, nil
}

// newSigner returns a signer of tokens with key, whose key ID is in the header of the tokens. It returns an error if
// the type of the key is not supported.
func newSigner(key crypto.Signer) (jose.Signer, error) {
	alg, err := algorithm(key.Public())
	if err != nil {
		return nil, err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{
		Algorithm: alg,
		Key:       &jose.JSONWebKey{Algorithm: string(alg), Key: key, KeyID: id, Use: "sig"},
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("creating service account token signer: %w", err)
	}
	return signer, nil
}

// Request issues a token for a TokenRequest, which a client has posted to the "token" subresource of the service
// account name. It returns a new object with the token and the lifetime that was granted, which MaxExpiration may
// have shortened. Errors are API errors, except if signing fails: the account or the bound object does not exist, or
// the request does not match them or has an invalid lifetime.
func (i *Issuer) Request(ctx context.Context, namespace, name string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	kind := authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind()
	meta := field.NewPath("metadata")
	if req.Name != "" && req.Name != name {
		return nil, apierrors.NewInvalid(kind, name, field.ErrorList{
			field.Invalid(meta.Child("name"), req.Name, "must match the service account name if specified")})
	}
	if req.Namespace != "" && req.Namespace != namespace {
		return nil, apierrors.NewInvalid(kind, name, field.ErrorList{
			field.Invalid(meta.Child("namespace"), req.Namespace, "must match the service account namespace if specified")})
	}
	sa, err := i.cfg.Objects.ServiceAccount(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != sa.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, sa.UID))
	}
	out := req.DeepCopy()
	out.Name, out.Namespace, out.UID = sa.Name, sa.Namespace, sa.UID
	out.Status = authenticationv1.TokenRequestStatus{}
	if len(out.Spec.Audiences) == 0 {
		out.Spec.Audiences = slices.Clone(i.cfg.Audiences)
	}
	Default(out)
	// The reported expiry is not after the one in the token.
	now := i.cfg.Now()
	out.CreationTimestamp = metav1.NewTime(now)
	if errs := validateRequest(&out.Spec); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind, "", errs)
	}
	b, err := i.bind(ctx, sa, out.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	if most := int64(i.cfg.MaxExpiration / time.Second); most > 0 && *out.Spec.ExpirationSeconds > most {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *out.Spec.ExpirationSeconds, most))
		*out.Spec.ExpirationSeconds = most
	}
	seconds := *out.Spec.ExpirationSeconds
	valid, warnAfter := seconds, int64(0)
	if i.cfg.ExtendExpiration && b.Pod != nil && seconds == extendable && i.forServer(out.Spec.Audiences) {
		valid, warnAfter = extended, seconds
	}
	c := newClaims(i.cfg.Issuer, b, now, time.Duration(valid)*time.Second, time.Duration(warnAfter)*time.Second, out.Spec.Audiences)
	token, err := jwt.Signed(i.signer).Claims(c).Serialize()
	if err != nil {
		return nil, fmt.Errorf("failed to generate token: %w", err)
	}
	out.Status = authenticationv1.TokenRequestStatus{
		Token:               token,
		ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(seconds) * time.Second)),
	}
	return out, nil
}

// Default sets the lifetime in req to one hour, if the request has none.
func Default(req *authenticationv1.TokenRequest) {
	if req.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultExpiration)
		req.Spec.ExpirationSeconds = &seconds
	}
}

// forServer reports whether all of the requested audiences are audiences of the API server. It returns true if there
// are none.
func (i *Issuer) forServer(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(i.cfg.Audiences, a) {
			return false
		}
	}
	return true
}

// validateRequest returns the errors of a request whose lifetime is set: a lifetime below 10 minutes or above 2^32
// seconds, and attestations, which are not supported.
func validateRequest(spec *authenticationv1.TokenRequestSpec) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Attestations) > 0 {
		// Binding tokens to webhooks is an alpha feature, which is disabled by default.
		return append(errs, field.Invalid(field.NewPath("spec", "attestations"), spec.Attestations,
			"attestations may only be specified with a webhook bound object reference"))
	}
	at := field.NewPath("spec", "expirationSeconds")
	if *spec.ExpirationSeconds < minExpiration {
		errs = append(errs, field.Invalid(at, *spec.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
	}
	if *spec.ExpirationSeconds > maxExpiration {
		errs = append(errs, field.Invalid(at, *spec.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bind reads the object that the new token of sa will be bound to: the Pod, Secret or Node that to refers to, or only
// the service account if to is nil. For a pod it also reads its node; a node that does not exist yet is used without
// a UID. It returns an API error if the object does not exist, is of another kind, has another UID than to, or is a
// pod of another account.
func (i *Issuer) bind(ctx context.Context, sa *corev1.ServiceAccount, to *authenticationv1.BoundObjectReference) (boundObjects, error) {
	b := boundObjects{ServiceAccount: sa}
	if to == nil {
		return b, nil
	}
	var uid types.UID
	var err error
	kind := schema.FromAPIVersionAndKind(to.APIVersion, to.Kind)
	switch {
	case kind.Group == "" && kind.Kind == "Pod":
		if b.Pod, err = i.cfg.Objects.Pod(ctx, sa.Namespace, to.Name); err != nil {
			return b, err
		}
		if b.Pod.Spec.ServiceAccountName != sa.Name {
			return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", sa.Name))
		}
		uid = b.Pod.UID
		if node := b.Pod.Spec.NodeName; node != "" {
			b.Node, err = i.cfg.Objects.Node(ctx, node)
			if apierrors.IsNotFound(err) {
				// A pod can be assigned to a node that is not registered yet.
				b.Node, err = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil
			}
			if err != nil {
				return b, err
			}
		}
	case kind.Group == "" && kind.Kind == "Secret":
		if b.Secret, err = i.cfg.Objects.Secret(ctx, sa.Namespace, to.Name); err != nil {
			return b, err
		}
		uid = b.Secret.UID
	case kind.Group == "" && kind.Kind == "Node":
		if b.Node, err = i.cfg.Objects.Node(ctx, to.Name); err != nil {
			return b, err
		}
		uid = b.Node.UID
	default:
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind.String()))
	}
	if to.UID != "" && to.UID != uid {
		return b, apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, to.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", to.UID))
	}
	return b, nil
}
