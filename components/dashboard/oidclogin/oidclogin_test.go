package oidclogin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// provider is an OpenID Connect provider, which issues the ID token "token of USER" for the code "code of USER".
type provider struct {
	*httptest.Server
	issuer    string // in its configuration
	challenge string // of the last login
	noToken   bool   // it sends no ID token
}

func newProvider(t *testing.T) *provider {
	p := &provider{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.issuer, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token"})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		user, ok := strings.CutPrefix(r.FormValue("code"), "code of ")
		_, password, _ := r.BasicAuth()
		if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != p.challenge || password != "secret" || r.FormValue("redirect_uri") != "https://dashboard/oidc/callback" {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		response := map[string]string{"access_token": "a", "token_type": "Bearer"}
		if !p.noToken {
			response["id_token"] = "token of " + user
		}
		_ = json.NewEncoder(w).Encode(response)
	})
	p.Server = httptest.NewTLSServer(mux)
	p.issuer = p.URL
	t.Cleanup(p.Close)
	return p
}

// logins returns Logins at p, and their clock.
func (p *provider) logins(t *testing.T) (*Logins, *time.Time) {
	t.Helper()
	l, err := New(Config{Issuer: p.URL, ClientID: "dashboard", ClientSecret: "secret", Scopes: []string{"email"}, Client: p.Client()})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	l.now = func() time.Time { return now }
	return l, &now
}

// begin starts a login and returns its state.
func (p *provider) begin(t *testing.T, l *Logins) string {
	t.Helper()
	address, state, err := l.Begin(t.Context(), "https://dashboard/oidc/callback")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if q.Get("state") != state || q.Get("client_id") != "dashboard" || q.Get("scope") != "openid email" || q.Get("code_challenge_method") != "S256" || u.Path != "/auth" {
		t.Errorf("the URL of the provider is %s", address)
	}
	p.challenge = q.Get("code_challenge")
	return state
}

func TestLogin(t *testing.T) {
	p := newProvider(t)
	l, now := p.logins(t)
	finish := func(state, code string) (string, error) {
		return l.Finish(t.Context(), url.Values{"state": {state}, "code": {code}})
	}
	state := p.begin(t, l)
	token, err := finish(state, "code of jane")
	if err != nil || token != "token of jane" {
		t.Fatalf("got %q, %v", token, err)
	}
	for name, c := range map[string]struct {
		state, code string
		wait        time.Duration
		want        string
	}{
		"used twice":    {state, "code of jane", 0, "log in again"},
		"unknown state": {"x", "code of jane", 0, "log in again"},
		"no state":      {"", "", 0, "log in again"},
		"wrong code":    {p.begin(t, l), "x", 0, "invalid_grant"},
		"too late":      {p.begin(t, l), "code of jane", pendingLifetime + time.Second, "took too long"},
	} {
		*now = now.Add(c.wait)
		if got, err := finish(c.state, c.code); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		*now = now.Add(-c.wait)
	}
	_, err = l.Finish(t.Context(), url.Values{"state": {p.begin(t, l)}, "error": {"access_denied"}, "error_description": {"not a member"}})
	if err == nil || !strings.Contains(err.Error(), "access_denied not a member") {
		t.Errorf("a refused login: %v", err)
	}
	p.noToken = true
	if _, err := finish(p.begin(t, l), "code of jane"); err == nil || !strings.Contains(err.Error(), "no ID token") {
		t.Errorf("without an ID token: %v", err)
	}
}

// TestRedeem checks that a one-time token works once, and for a minute.
func TestRedeem(t *testing.T) {
	p := newProvider(t)
	l, now := p.logins(t)
	once := l.Keep("token")
	if got, ok := l.Redeem(once); !ok || got != "token" {
		t.Errorf("got %q, %v", got, ok)
	}
	late := l.Keep("token")
	*now = now.Add(time.Minute + time.Second)
	for name, text := range map[string]string{"twice": once, "too late": late, "empty": ""} {
		if got, ok := l.Redeem(text); ok {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// TestMaxPending checks that logins that are never completed use a limited amount of memory.
func TestMaxPending(t *testing.T) {
	p := newProvider(t)
	l, now := p.logins(t)
	first := p.begin(t, l)
	for range maxPending {
		*now = now.Add(time.Millisecond)
		p.begin(t, l)
	}
	if _, err := l.Finish(t.Context(), url.Values{"state": {first}, "code": {"code of jane"}}); err == nil || len(l.pending) != maxPending {
		t.Errorf("%d pending logins; the first: %v", len(l.pending), err)
	}
	*now = now.Add(pendingLifetime * 2)
	l.Keep("x")
	if len(l.pending) != 0 {
		t.Errorf("%d expired logins are left", len(l.pending))
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{Issuer: "http://a", ClientID: "x"}, {Issuer: "a", ClientID: "x"}, {Issuer: "", ClientID: "x"}, {Issuer: "https://a"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

// TestDiscovery checks which configurations of a provider are refused, and that a later login requests it again.
func TestDiscovery(t *testing.T) {
	p := newProvider(t)
	l, _ := p.logins(t)
	p.issuer = "https://other"
	if _, _, err := l.Begin(t.Context(), "https://dashboard/oidc/callback"); err == nil || !strings.Contains(err.Error(), "https://other") {
		t.Errorf("another issuer: %v", err)
	}
	p.issuer = p.URL
	p.begin(t, l)
	p.Close()
	p.begin(t, l) // the configuration is known
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other, _ := p.logins(t)
	if _, _, err := other.Begin(ctx, "https://dashboard/oidc/callback"); err == nil {
		t.Error("a provider that does not run was found")
	}
}
