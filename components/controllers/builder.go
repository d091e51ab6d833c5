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

// tokenLife is the lifetime that is requested for a controller's service account token. The API server may shorten it.
const tokenLife = time.Hour

// tokenBuilder creates separate clients for each controller, which authenticate with a token of the controller's
// service account in kube-system. It implements --use-service-account-credentials. Missing service accounts are
// created. It is safe for concurrent use.
type tokenBuilder struct {
	clients *client.Clients

	mu    sync.Mutex
	built map[string]*client.Clients // guarded by mu
}

var _ client.Builder = (*tokenBuilder)(nil)

// newTokenBuilder returns a tokenBuilder that requests tokens with own, the controller manager's clients. All clients
// that it builds share the informers of own.
func newTokenBuilder(own *client.Clients) *tokenBuilder {
	return &tokenBuilder{clients: own, built: map[string]*client.Clients{}}
}

// For returns the clients of the controller with this service account. It sends no request; the first request of the
// clients requests the token.
func (b *tokenBuilder) For(name string) (*client.Clients, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.built[name]; c != nil {
		return c, nil
	}
	rc := rest.AnonymousClientConfig(b.clients.REST)
	rc.UserAgent = b.clients.REST.UserAgent + "/" + name
	source := &tokenSource{kube: b.clients.Kube, account: name, now: time.Now}
	rc.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &tokenTransport{source: source, next: rt} })
	c, err := client.New(client.Config{REST: rc, Requests: b.clients.Requests})
	if err != nil {
		return nil, err
	}
	c.Informers = b.clients.Informers
	b.built[name] = c
	return c, nil
}

// tokenSource caches the token of a service account and renews it before it expires. It is safe for concurrent use.
type tokenSource struct {
	kube    kubernetes.Interface
	account string
	now     func() time.Time

	mu    sync.Mutex
	token string    // guarded by mu
	renew time.Time // guarded by mu
}

// get returns a valid token. If there is none or it expires soon, get requests a new one from the API server, and
// creates the service account if it does not exist.
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
			return "", fmt.Errorf("creating service account %s: %w", s.account, err)
		}
		tr, err = ask()
	}
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %s: %w", s.account, err)
	}
	s.token = tr.Status.Token
	// Renew well before the token expires, because clocks differ.
	s.renew = now.Add(tr.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	return s.token, nil
}

// drop discards a token that the API server has rejected, so that the next get requests a new one.
func (s *tokenSource) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

// tokenTransport is an HTTP transport that adds the token of source to each request.
type tokenTransport struct {
	source *tokenSource
	next   http.RoundTripper
}

// RoundTrip sends a request with the token. It returns an error without sending the request if there is no token. If
// the response is 401 Unauthorized, it drops the token, so that the next request gets a new one.
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
