// Package oidclogin gets ID tokens of users from an OpenID Connect provider, with the authorization code flow and PKCE.
//
// The tokens are not verified here: the API server, which is configured for the same provider, does that.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens
package oidclogin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

const (
	// pendingLifetime is how long a user has for a login at the provider.
	pendingLifetime = 10 * time.Minute
	// maxPending limits the number of logins that have not been completed. When it is reached, the oldest one is discarded.
	maxPending = 1000
	// requestTimeout limits a request to the provider.
	requestTimeout = 10 * time.Second
)

// Config configures Logins.
type Config struct {
	// Issuer is the URL of the provider, an HTTPS URL. It must be that of the API server's configuration.
	Issuer string
	// ClientID identifies the dashboard at the provider. The API server must accept it as the audience of tokens.
	ClientID string
	// ClientSecret is the secret of the client. It is empty for public clients.
	ClientSecret string
	// Scopes are the requested scopes besides openid.
	Scopes []string
	// Client sends the requests to the provider. Nil means http.DefaultClient.
	Client *http.Client
}

// Logins are the logins of users at one provider. It is safe for concurrent use.
type Logins struct {
	cfg Config
	now func() time.Time

	mu sync.Mutex
	// endpoint is that of the provider; it is empty until the first login needs it. Guarded by mu.
	endpoint oauth2.Endpoint
	// pending are the logins that have begun, by their state, and tokens the ID tokens of completed logins, by their
	// one-time token. Guarded by mu.
	pending map[string]pending
	tokens  map[string]completed
}

// pending is a login that has begun.
type pending struct {
	verifier string // of PKCE
	redirect string
	expires  time.Time
}

// completed is a login whose ID token has not been redeemed.
type completed struct {
	token   string
	expires time.Time
}

// New validates cfg and returns Logins. It sends no requests.
func New(cfg Config) (*Logins, error) {
	u, err := url.Parse(cfg.Issuer)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the issuer %q is not an HTTPS URL", cfg.Issuer)
	}
	if cfg.ClientID == "" {
		return nil, errors.New("the client ID is missing")
	}
	if cfg.Client == nil {
		cfg.Client = http.DefaultClient
	}
	return &Logins{cfg: cfg, now: time.Now, pending: map[string]pending{}, tokens: map[string]completed{}}, nil
}

// Provider returns the host of the provider, to show it to users.
func (l *Logins) Provider() string {
	u, err := url.Parse(l.cfg.Issuer)
	if err != nil { // New has parsed it
		return l.cfg.Issuer
	}
	return u.Host
}

// Begin starts a login. It returns the URL of the provider at which the user logs in, and the state that identifies the
// login. The caller must store the state in the user's browser. After the login, the provider redirects the browser to the
// URL redirect.
func (l *Logins) Begin(ctx context.Context, redirect string) (address, state string, err error) {
	client, err := l.client(ctx, redirect)
	if err != nil {
		return "", "", err
	}
	state = secret()
	verifier := oauth2.GenerateVerifier()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discard()
	l.pending[state] = pending{verifier: verifier, redirect: redirect, expires: l.now().Add(pendingLifetime)}
	return client.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier)), state, nil
}

// Finish completes the login with a state, from the query of the URL to which the provider has redirected the browser. The
// caller must have compared the state with that in the browser. It returns the ID token of the user.
func (l *Logins) Finish(ctx context.Context, query url.Values) (string, error) {
	state := query.Get("state")
	l.mu.Lock()
	login, ok := l.pending[state]
	delete(l.pending, state)
	expired := ok && l.now().After(login.expires)
	l.mu.Unlock()
	if !ok || expired {
		return "", errors.New("the login took too long or was completed before: log in again")
	}
	if code := query.Get("error"); code != "" {
		return "", fmt.Errorf("the provider refused the login: %s", strings.TrimSpace(code+" "+query.Get("error_description")))
	}
	client, err := l.client(ctx, login.redirect)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, oauth2.HTTPClient, l.cfg.Client), requestTimeout)
	defer cancel()
	got, err := client.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(login.verifier))
	if err != nil {
		return "", fmt.Errorf("getting the token of the provider: %w", err)
	}
	token, _ := got.Extra("id_token").(string)
	if token == "" {
		return "", errors.New("the provider has sent no ID token: permit the scope openid for this client")
	}
	return token, nil
}

// Keep stores an ID token until Redeem returns it, for a minute. It returns the one-time token for Redeem.
func (l *Logins) Keep(token string) string {
	once := secret()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discard()
	l.tokens[once] = completed{token: token, expires: l.now().Add(time.Minute)}
	return once
}

// Redeem returns the ID token of a one-time token, once. It returns false if there is none.
func (l *Logins) Redeem(once string) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.tokens[once]
	delete(l.tokens, once)
	if !ok || l.now().After(found.expires) {
		return "", false
	}
	return found.token, true
}

// discard removes what has expired and, if there are maxPending logins, the one that expires first. The caller holds l.mu.
func (l *Logins) discard() {
	now := l.now()
	first := ""
	for state, login := range l.pending {
		if now.After(login.expires) {
			delete(l.pending, state)
		} else if first == "" || login.expires.Before(l.pending[first].expires) {
			first = state
		}
	}
	if len(l.pending) >= maxPending {
		delete(l.pending, first)
	}
	for once, c := range l.tokens {
		if now.After(c.expires) {
			delete(l.tokens, once)
		}
	}
}

// client returns the OAuth 2 client for a redirect URL.
func (l *Logins) client(ctx context.Context, redirect string) (*oauth2.Config, error) {
	endpoint, err := l.discover(ctx)
	if err != nil {
		return nil, err
	}
	return &oauth2.Config{
		ClientID: l.cfg.ClientID, ClientSecret: l.cfg.ClientSecret, Endpoint: endpoint, RedirectURL: redirect,
		Scopes: append([]string{"openid"}, l.cfg.Scopes...),
	}, nil
}

// discover returns the endpoint of the provider, which it requests until the provider has responded once.
//
// https://openid.net/specs/openid-connect-discovery-1_0.html
func (l *Logins) discover(ctx context.Context) (oauth2.Endpoint, error) {
	l.mu.Lock()
	known := l.endpoint
	l.mu.Unlock()
	if known.AuthURL != "" {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(l.cfg.Issuer, "/")+"/.well-known/openid-configuration", nil)
	if err != nil {
		return known, err
	}
	resp, err := l.cfg.Client.Do(req)
	if err != nil {
		return known, fmt.Errorf("requesting the configuration of the provider: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return known, fmt.Errorf("requesting the configuration of the provider: %s: %s", req.URL, resp.Status)
	}
	var got struct {
		Issuer string `json:"issuer"`
		Auth   string `json:"authorization_endpoint"`
		Token  string `json:"token_endpoint"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&got); err != nil {
		return known, fmt.Errorf("reading the configuration of the provider: %w", err)
	}
	if got.Issuer != l.cfg.Issuer {
		return known, fmt.Errorf("the configuration of the provider is of the issuer %q, not %q", got.Issuer, l.cfg.Issuer)
	}
	for _, text := range []string{got.Auth, got.Token} {
		if u, err := url.Parse(text); err != nil || u.Scheme != "https" {
			return known, fmt.Errorf("the configuration of the provider contains %q, which is not an HTTPS URL", text)
		}
	}
	known = oauth2.Endpoint{AuthURL: got.Auth, TokenURL: got.Token}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endpoint = known
	return known, nil
}

// secret returns a random text of at least 128 bits.
func secret() string { return rand.Text() }
