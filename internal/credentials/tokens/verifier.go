package tokens

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// VerifierConfig configures a Verifier: the issuers, keys and audiences of the tokens that it accepts, and how it
// reads the objects that they are bound to.
type VerifierConfig struct {
	// Issuers are all values of --service-account-issuer.
	Issuers []string
	// Keys are the keys for verifying signatures.
	Keys *KeySet
	// Audiences are the audiences of the API server: --api-audiences, or the first issuer.
	Audiences []string
	// Objects reads the objects that tokens are bound to. An error of it makes a token invalid.
	Objects Getter
	// Usage records the use of tokens. It may be nil.
	Usage *Usage
	// Now defaults to time.Now.
	Now func() time.Time
}

// Verifier verifies service account tokens for the API server's authentication. It implements
// authenticator.Token and is safe for concurrent use.
type Verifier struct {
	cfg VerifierConfig

	mu sync.RWMutex // guards the two maps
	// young contains the latest verified tokens by their hash, old the ones before. When young is
	// full, it replaces old. Entries never change.
	young, old map[[sha256.Size]byte]*verified
}

var _ authenticator.Token = (*Verifier)(nil)

// cacheSize is the maximum number of verified tokens in each of the two maps of a Verifier. An
// entry takes about one kilobyte.
const cacheSize = 4096

// verified is a cached token whose signature and issuer are valid. Its expiry and bound objects are
// checked at each use.
type verified struct {
	claims claims
	// user is the user of the token, provided that its bound objects still exist. It is nil for
	// legacy tokens.
	user *user.DefaultInfo
}

var (
	errInvalidated = errors.New("service account token has been invalidated")
	errExpired     = errors.New("service account token has expired")
)

// NewVerifier validates cfg and returns a Verifier. Issuers, Keys and Objects are required; empty Audiences are
// replaced by the first issuer.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if len(cfg.Issuers) == 0 || cfg.Keys == nil || cfg.Objects == nil {
		return nil, errors.New("creating service account token verifier: issuers, keys and objects are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = cfg.Issuers[:1]
	}
	return &Verifier{cfg: cfg, young: map[[sha256.Size]byte]*verified{}}, nil
}

// AuthenticateToken returns the user of a token. It returns false without an error if the token is malformed or was
// not issued by one of the configured issuers, so that other authenticators can try it. It returns an error if the
// token is invalid or expired, has none of the audiences in ctx, which are those of the API server by default, or is
// bound to an object that does not exist anymore.
func (v *Verifier) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	tok, ok, err := v.verify(token)
	if !ok || err != nil {
		return nil, false, err
	}
	c := &tok.claims
	audiences := authenticator.Audiences(c.Audience)
	legacy := c.Issuer == legacyIssuer
	if legacy || len(audiences) == 0 {
		audiences = v.cfg.Audiences
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = v.cfg.Audiences
	}
	common := audiences.Intersect(wanted)
	if len(common) == 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", audiences, wanted)
	}
	if legacy {
		info, err := v.checkLegacy(ctx, token, c)
		if err != nil {
			return nil, false, err
		}
		return &authenticator.Response{User: info.UserInfo(), Audiences: common}, true, nil
	}
	if err := v.check(ctx, c); err != nil {
		return nil, false, err
	}
	v.cfg.Usage.recordBound(ctx, c.Subject, v.cfg.Now(), c.warnAfter())
	return &authenticator.Response{User: tok.user, Audiences: common}, true, nil
}

// verify verifies the properties of a token that cannot change: its signature, its issuer and the consistency of its
// claims. It caches tokens that pass. It returns false without an error if the token has another issuer or is
// malformed, and an error if its signature or claims are invalid.
func (v *Verifier) verify(token string) (_ *verified, _ bool, err error) {
	began := time.Now()
	hash := sha256.Sum256([]byte(token))
	v.mu.RLock()
	tok := v.young[hash]
	if tok == nil {
		tok = v.old[hash]
	}
	v.mu.RUnlock()
	if tok != nil {
		v.cfg.Usage.recordHit(time.Since(began))
		return tok, true, nil
	}
	if !v.hasOurIssuer(token) {
		return nil, false, nil
	}
	done := v.cfg.Usage.recordVerification(began)
	defer func() { done(err) }()
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512})
	if err != nil || len(parsed.Headers) != 1 {
		return nil, false, nil
	}
	tok = &verified{}
	err = errors.New("invalid signature")
	for _, key := range v.cfg.Keys.candidates(parsed.Headers[0].KeyID) {
		// Each key is only used with its own algorithm, regardless of the token header.
		if parsed.Headers[0].Algorithm != string(key.alg) {
			continue
		}
		if err = parsed.Claims(key.key, &tok.claims); err == nil {
			break
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("verifying service account token: %w", err)
	}
	if tok.claims.Issuer != legacyIssuer {
		if tok.user, err = userOf(&tok.claims); err != nil {
			return nil, false, err
		}
	}
	v.mu.Lock()
	if len(v.young) >= cacheSize {
		v.old, v.young = v.young, make(map[[sha256.Size]byte]*verified, cacheSize)
	}
	v.young[hash] = tok
	v.mu.Unlock()
	return tok, true, nil
}

// hasOurIssuer reports whether the issuer that a token claims, before its signature is verified, is one of the
// configured issuers or that of legacy tokens. It returns false if the token is malformed.
func (v *Verifier) hasOurIssuer(token string) bool {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	if !ok {
		return false
	}
	data, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(data, &c) != nil {
		return false
	}
	return c.Issuer == legacyIssuer || slices.Contains(v.cfg.Issuers, c.Issuer)
}

// userOf returns the user that the claims of a bound token identify, with its groups and the names
// of the bound objects. It returns an error if the claims are incomplete or contradict each other.
func userOf(c *claims) (*user.DefaultInfo, error) {
	k := c.Kubernetes
	if k == nil || k.Namespace == "" || k.ServiceAccount.Name == "" {
		return nil, errors.New("service account token claims are incomplete")
	}
	if c.Subject != serviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name) {
		return nil, errors.New("sub claim is invalid")
	}
	info := serviceaccount.ServiceAccountInfo{
		Namespace: k.Namespace,
		Name:      k.ServiceAccount.Name,
		UID:       k.ServiceAccount.UID,
	}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	if k.Pod != nil {
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	u, ok := info.UserInfo().(*user.DefaultInfo)
	if !ok {
		return nil, errors.New("unexpected type of user")
	}
	return u, nil
}

// check verifies the properties of a bound token that can change: that it is valid now, with a tolerance of one
// minute, and that the objects that it is bound to exist with the same UIDs and that their deletion time, if any, is
// at most a minute ago. It returns errInvalidated or another error that the client may see.
func (v *Verifier) check(ctx context.Context, c *claims) error {
	now := v.cfg.Now()
	switch err := c.Validate(jwt.Expected{Time: now}); {
	case errors.Is(err, jwt.ErrExpired):
		return errExpired
	case err != nil:
		return errors.New("service account token claims could not be validated due to unexpected error")
	}
	// A pod's deletion timestamp is the end of its grace period. The token can be used until
	// shortly after it for cleanup.
	goneBefore := now.Add(-jwt.DefaultLeeway)
	alive := func(m *metav1.ObjectMeta, uid string) error {
		if m.DeletionTimestamp != nil && m.DeletionTimestamp.Time.Before(goneBefore) {
			return errInvalidated
		}
		if string(m.UID) != uid {
			return errInvalidated
		}
		return nil
	}
	k := c.Kubernetes
	sa, err := v.serviceAccount(ctx, k.Namespace, k.ServiceAccount.Name, k.ServiceAccount.UID)
	if err != nil {
		return err
	}
	if err := alive(&sa.ObjectMeta, k.ServiceAccount.UID); err != nil {
		return err
	}
	switch {
	case k.Pod != nil:
		pod, err := v.cfg.Objects.Pod(ctx, k.Namespace, k.Pod.Name)
		if err != nil {
			return errInvalidated
		}
		return alive(&pod.ObjectMeta, k.Pod.UID)
	case k.Secret != nil:
		secret, err := v.cfg.Objects.Secret(ctx, k.Namespace, k.Secret.Name)
		if err != nil {
			return errInvalidated
		}
		return alive(&secret.ObjectMeta, k.Secret.UID)
	case k.Node != nil:
		node, err := v.cfg.Objects.Node(ctx, k.Node.Name)
		if err != nil {
			return errInvalidated
		}
		return alive(&node.ObjectMeta, k.Node.UID)
	}
	return nil
}

// serviceAccount returns the service account, or an error if it cannot be read or has another UID, because it was
// deleted and created again.
func (v *Verifier) serviceAccount(ctx context.Context, namespace, name, uid string) (*corev1.ServiceAccount, error) {
	sa, err := v.cfg.Objects.ServiceAccount(ctx, namespace, name)
	if err != nil {
		return nil, errInvalidated
	}
	if string(sa.UID) != uid {
		return nil, fmt.Errorf("service account UID (%s) does not match claim (%s)", sa.UID, uid)
	}
	return sa, nil
}
