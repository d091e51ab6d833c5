package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// maxCached is the maximum number of cached responses of each kind. When it is reached, the cache is cleared.
const maxCached = 4096

// Auth authenticates the clients of the HTTPS server by client certificate or bearer token, and authorizes
// their requests. It uses the API server's TokenReview and SubjectAccessReview. Its methods are safe for
// concurrent use.
type Auth struct {
	// Kube is the API client. If it is nil, all tokens are rejected, and all requests unless AlwaysAllow is set.
	Kube     kubernetes.Interface
	NodeName string
	// Anonymous allows anonymous requests. They are still subject to authorization.
	Anonymous bool
	// AlwaysAllow authorizes every authenticated request.
	AlwaysAllow bool
	// NoTokens means that bearer tokens are not accepted.
	NoTokens bool
	// TokenTTL, AllowTTL and DenyTTL are the cache durations of the API server's responses.
	TokenTTL, AllowTTL, DenyTTL time.Duration

	mu      sync.Mutex // guards the following fields
	tokens  map[[sha256.Size]byte]cachedUser
	allowed map[string]cachedDecision
}

// user is an authenticated client of the kubelet's HTTPS server: its name, UID, groups and extra attributes.
type user struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

// cachedUser is the result of a TokenReview. user is nil for a token that is not valid.
type cachedUser struct {
	user  *user
	until time.Time
}

// cachedDecision is the result of a SubjectAccessReview.
type cachedDecision struct {
	ok     bool
	reason string
	until  time.Time
}

// wrap returns a handler that passes only authenticated and authorized requests to next. It responds to others
// with status 401 or 403, or with 500 if the API server cannot be asked. ca verifies client certificates; nil
// accepts none.
func (a *Auth) wrap(next http.Handler, ca *x509.CertPool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := a.authenticate(r, ca)
		if err != nil || u == nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb, subresources := attributes(r)
		if !a.AlwaysAllow {
			ok, err := a.authorize(r.Context(), u, verb, subresources, r.URL.Path)
			if err != nil {
				http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%v)", u.name, verb, subresources), http.StatusInternalServerError)
				return
			}
			if !ok {
				http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.name, verb, subresources), http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// authenticate returns the user of a request by its client certificate, its bearer token, or, if it has neither
// and that is allowed, as the anonymous user. A client certificate that is not valid is ignored. It returns nil
// if the request is not authenticated, for example because its token is not valid, and an error if the API
// server cannot review the token.
func (a *Auth) authenticate(r *http.Request, ca *x509.CertPool) (*user, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && ca != nil {
		opts := x509.VerifyOptions{Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Intermediates: x509.NewCertPool()}
		for _, c := range r.TLS.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		leaf := r.TLS.PeerCertificates[0]
		if _, err := leaf.Verify(opts); err == nil && leaf.Subject.CommonName != "" {
			return &user{name: leaf.Subject.CommonName, groups: append(slices.Clip(leaf.Subject.Organization), "system:authenticated")}, nil
		}
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && strings.TrimSpace(token) != "" {
		return a.token(r.Context(), strings.TrimSpace(token))
	}
	if a.Anonymous {
		return &user{name: "system:anonymous", groups: []string{"system:unauthenticated"}}, nil
	}
	return nil, nil
}

// token returns the user of a bearer token by a TokenReview, whose result is cached for TokenTTL. It returns
// nil if the token is not valid or tokens are not accepted, and an error if the API server does not respond.
func (a *Auth) token(ctx context.Context, token string) (*user, error) {
	if a.Kube == nil || a.NoTokens {
		return nil, nil
	}
	key := sha256.Sum256([]byte(token))
	now := time.Now()
	a.mu.Lock()
	held, ok := a.tokens[key]
	a.mu.Unlock()
	if ok && now.Before(held.until) {
		return held.user, nil
	}
	review, err := a.Kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating TokenReview: %w", err)
	}
	var u *user
	if review.Status.Authenticated {
		u = &user{name: review.Status.User.Username, uid: review.Status.User.UID, groups: review.Status.User.Groups, extra: map[string]authorizationv1.ExtraValue{}}
		for k, v := range review.Status.User.Extra {
			u.extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	a.mu.Lock()
	if a.tokens == nil || len(a.tokens) >= maxCached {
		a.tokens = map[[sha256.Size]byte]cachedUser{}
	}
	a.tokens[key] = cachedUser{u, now.Add(a.TokenTTL)}
	a.mu.Unlock()
	return u, nil
}

// attributes returns the verb of a request and the subresources of the Node that authorize it. Permission for
// one of them suffices; the most specific is first.
func attributes(r *http.Request) (verb string, subresources []string) {
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
	default:
		verb = "get"
	}
	path := r.URL.Path
	under := func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	switch {
	case under("/stats"):
		return verb, []string{"stats"}
	case under("/metrics"):
		return verb, []string{"metrics"}
	case under("/logs"):
		return verb, []string{"log"}
	case under("/checkpoint"):
		return verb, []string{"checkpoint"}
	case under("/healthz"):
		return verb, []string{"healthz", "proxy"}
	case under("/statusz"):
		return verb, []string{"statusz"}
	case under("/flagz"):
		return verb, []string{"configz"}
	case under("/configz"):
		return verb, []string{"configz", "proxy"}
	case under("/pods"), under("/runningpods"):
		return verb, []string{"pods", "proxy"}
	}
	return verb, []string{"proxy"}
}

// authorize reports whether the user may access one of the subresources of the Node with the verb. path is that of
// the request, for errors. It returns an error if the API server does not respond to the SubjectAccessReview.
func (a *Auth) authorize(ctx context.Context, u *user, verb string, subresources []string, path string) (bool, error) {
	for _, sub := range subresources {
		ok, err := a.ask(ctx, u, verb, sub, path)
		if err != nil || ok {
			return ok, err
		}
	}
	return false, nil
}

// ask reports whether the API server permits the user to access the subresource sub of the Node with the verb, by a
// SubjectAccessReview. path is that of the request, for errors. The result is cached. Without an API server it
// returns false.
func (a *Auth) ask(ctx context.Context, u *user, verb, sub, path string) (bool, error) {
	if a.Kube == nil {
		return false, nil
	}
	key := strings.Join(append([]string{u.name, u.uid, verb, sub}, u.groups...), "\x00") + fmt.Sprint(u.extra)
	now := time.Now()
	a.mu.Lock()
	held, ok := a.allowed[key]
	a.mu.Unlock()
	if ok && now.Before(held.until) {
		return held.ok, nil
	}
	review, err := a.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.name, UID: u.uid, Groups: u.groups, Extra: u.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.NodeName,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("creating SubjectAccessReview of %s for %s: %w", u.name, path, err)
	}
	ttl := a.DenyTTL
	if review.Status.Allowed {
		ttl = a.AllowTTL
	}
	a.mu.Lock()
	if a.allowed == nil || len(a.allowed) >= maxCached {
		a.allowed = map[string]cachedDecision{}
	}
	a.allowed[key] = cachedDecision{ok: review.Status.Allowed, reason: review.Status.Reason, until: now.Add(ttl)}
	a.mu.Unlock()
	return review.Status.Allowed, nil
}
