package controllers

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/internal/client"
)

// tokenLife is how long a controller's token is asked to be valid.
const tokenLife = time.Hour

// tokenBuilder makes each controller's clients with a token of its service
// account in kube-system, which it makes if it is missing. It is safe for
// several goroutines.
type tokenBuilder struct {
	own *client.Clients

	mu   sync.Mutex
	made map[string]*client.Clients // guarded by mu
}

var _ client.Builder = (*tokenBuilder)(nil)

// newTokenBuilder makes a builder that asks for tokens as the user of own,
// whose informers all share.
func newTokenBuilder(own *client.Clients) *tokenBuilder {
	return &tokenBuilder{own: own, made: map[string]*client.Clients{}}
}

// For is client.Builder's. It makes no request; the first use of the clients
// does.
func (b *tokenBuilder) For(name string) (*client.Clients, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.made[name]; c != nil {
		return c, nil
	}
	rc := rest.AnonymousClientConfig(b.own.REST)
	rc.UserAgent = b.own.REST.UserAgent + "/" + name
	source := &tokenSource{kube: b.own.Kube, account: name, now: time.Now}
	rc.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &tokenTransport{source: source, next: rt} })
	c, err := client.New(client.Config{REST: rc, Requests: b.own.Requests})
	if err != nil {
		return nil, err
	}
	c.Informers = b.own.Informers
	b.made[name] = c
	return c, nil
}

// tokenSource keeps a token of a service account fresh.
type tokenSource struct {
	kube    kubernetes.Interface
	account string
	now     func() time.Time

	mu    sync.Mutex
	token string    // guarded by mu
	renew time.Time // guarded by mu
}

// get returns a token that is good for a while, asking for one if need be.
func (s *tokenSource) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.token != "" && now.Before(s.renew) {
		return s.token, nil
	}
	life := int64(tokenLife / time.Second)
	accounts := s.kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	ask := func() (*authv1.TokenRequest, error) {
		return accounts.CreateToken(ctx, s.account, &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &life}}, metav1.CreateOptions{})
	}
	tr, err := ask()
	if apierrors.IsNotFound(err) {
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: s.account, Namespace: metav1.NamespaceSystem}}
		if _, err := accounts.Create(ctx, sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("making the service account of %s: %w", s.account, err)
		}
		tr, err = ask()
	}
	if err != nil {
		return "", fmt.Errorf("asking for a token of %s: %w", s.account, err)
	}
	s.token = tr.Status.Token
	// Well before it expires, for clocks differ.
	s.renew = now.Add(tr.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	return s.token, nil
}

// drop forgets a token that was refused.
func (s *tokenSource) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

// tokenTransport sends requests with the token.
type tokenTransport struct {
	source *tokenSource
	next   http.RoundTripper
}

// RoundTrip is http.RoundTripper's.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.source.get(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.source.drop(token)
	}
	return resp, err
}
