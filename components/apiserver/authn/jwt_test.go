package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"hyperkube/internal/testing/testwait"
)

// issuer is an OpenID Connect provider.
type issuer struct {
	*httptest.Server
	signer jose.Signer
	ca     string
	// down makes all responses errors.
	down atomic.Bool
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{}
	i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if i.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var doc any = map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"authorization_endpoint": i.URL + "/a", "token_endpoint": i.URL + "/t", "id_token_signing_alg_values_supported": []string{"ES256"},
		}
		if req.URL.Path == "/keys" {
			doc = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(doc)
	}))
	t.Cleanup(i.Close)
	i.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	return i
}

func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "kube", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	s, err := jwt.Signed(i.signer).Claims(all).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (i *issuer) config(more string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: " + i.URL +
		"\n    audiences: [kube]\n    certificateAuthority: |\n      " + strings.ReplaceAll(strings.TrimSpace(i.ca), "\n", "\n      ") + "\n" + more
}

// run runs a in the background until the test ends.
func run(t *testing.T, a *Authenticator) {
	t.Helper()
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// until retries until the result is good, because keys are fetched in the background.
func until(t *testing.T, a *Authenticator, token string, good func(*authenticator.Response, error) bool) {
	t.Helper()
	testwait.Succeed(t, "a good result", func() error {
		resp, _, err := a.AuthenticateToken(t.Context(), token)
		if good(resp, err) {
			return nil
		}
		return fmt.Errorf("got %+v, %s", resp, fmt.Sprint(err))
	})
}

func TestOIDCFlags(t *testing.T) {
	i := newIssuer(t)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(i.ca), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Log: slog.Default(), OIDC: &OIDC{
		IssuerURL: i.URL, ClientID: "kube", CAFile: ca, GroupsClaim: "groups", GroupsPrefix: "oidc:",
		SigningAlgs: []string{"ES256"}, RequiredClaims: map[string]string{"hd": "example.com"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, a)
	until(t, a, i.token(t, map[string]any{"sub": "jane", "hd": "example.com", "groups": []string{"dev"}}), func(r *authenticator.Response, err error) bool {
		return err == nil && r != nil && r.User.GetName() == i.URL+"#jane" && slices.Contains(r.User.GetGroups(), "oidc:dev") &&
			slices.Contains(r.User.GetGroups(), "system:authenticated")
	})
	for name, token := range map[string]string{
		"no required claim": i.token(t, map[string]any{"sub": "jane"}),
		"expired":           i.token(t, map[string]any{"sub": "jane", "hd": "example.com", "exp": 1}),
		"other audience":    i.token(t, map[string]any{"sub": "jane", "hd": "example.com", "aud": "x"}),
		"other signer":      newIssuer(t).token(t, map[string]any{"iss": i.URL, "sub": "jane", "hd": "example.com"}),
	} {
		if resp, ok, err := a.AuthenticateToken(t.Context(), token); ok || err == nil {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	if _, err := New(Config{Log: slog.Default(), OIDC: &OIDC{IssuerURL: i.URL}}); err == nil {
		t.Error("an issuer without a client is accepted")
	}
}

func TestAuthenticationConfiguration(t *testing.T) {
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "config")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+"~", file); err != nil {
			t.Fatal(err)
		}
	}
	const rules = `  claimValidationRules:
  - expression: 'claims.hd == "example.com"'
    message: the hd claim must be set to example.com
  claimMappings:
    username: {expression: '"ext:" + claims.sub'}
    groups: {expression: 'claims.roles'}
    uid: {claim: uid}
    extra:
    - {key: example.com/tenant, valueExpression: claims.tenant}
  userValidationRules:
  - {expression: "!user.username.startsWith('ext:system:')", message: username cannot used reserved system prefix}
anonymous:
  enabled: true
  conditions: [{path: /livez}]
`
	write(i.config(rules))
	a, err := New(Config{Log: slog.Default(), ConfigFile: file, Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	run(t, a)
	claims := map[string]any{"sub": "jane", "hd": "example.com", "roles": []string{"a", "b"}, "uid": "7", "tenant": "t"}
	until(t, a, i.token(t, claims), func(r *authenticator.Response, err error) bool {
		return err == nil && r != nil && r.User.GetName() == "ext:jane" && r.User.GetUID() == "7" &&
			slices.Contains(r.User.GetGroups(), "b") && slices.Equal(r.User.GetExtra()["example.com/tenant"], []string{"t"})
	})
	claims["sub"] = "system:x"
	if _, ok, err := a.AuthenticateToken(t.Context(), i.token(t, claims)); ok || err == nil || !strings.Contains(err.Error(), "reserved system prefix") {
		t.Errorf("user validation rule: %v", err)
	}
	anonymous := func(path string) bool {
		_, ok, err := a.AuthenticateRequest(httptest.NewRequest(http.MethodGet, path, nil))
		return ok && err == nil
	}
	if !anonymous("/livez") || anonymous("/api") {
		t.Error("anonymous requests are not limited by path")
	}
	// An invalid configuration is ignored, a valid one is applied.
	write("kind: nonsense")
	write(i.config("  claimMappings:\n    username: {claim: sub, prefix: 'new:'}\n" + rules[strings.Index(rules, "anonymous:"):]))
	claims["sub"] = "joe"
	until(t, a, i.token(t, claims), func(r *authenticator.Response, err error) bool {
		return err == nil && r != nil && r.User.GetName() == "new:joe"
	})
	if !anonymous("/livez") || anonymous("/api") {
		t.Error("anonymous requests are no longer limited by path")
	}
	write(i.config("  claimMappings:\n    username: {claim: sub, prefix: ''}\n"))
	if a, err = New(Config{Log: slog.Default(), ConfigFile: file, Anonymous: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.issuers.cancel) // it may still request the keys of the issuer
	if !anonymous("/api") {
		t.Error("the flag is ignored although the file does not configure it")
	}
	for name, text := range map[string]string{
		"own issuer": i.config("  claimMappings:\n    username: {claim: sub, prefix: ''}\n"),
		"bad CEL":    i.config("  claimMappings:\n    username: {expression: 'nothing.x'}\n"),
		"no mapping": i.config(""),
		"unknown":    i.config("  claimMapping: {}\n"),
	} {
		write(text)
		if _, err := New(Config{Log: slog.Default(), ConfigFile: file, Issuers: []string{i.URL}}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestConfigurationReload reads the file as Run does. It checks that the anonymous settings do not
// change after startup, and that an issuer that is not healthy yet is retried.
func TestConfigurationReload(t *testing.T) {
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "config")
	const (
		mapping   = "  claimMappings:\n    username: {claim: sub, prefix: ''}\n"
		anonymous = "anonymous: {enabled: true, conditions: [{path: /livez}]}\n"
	)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(i.config(mapping + anonymous))
	a, err := New(Config{Log: slog.Default(), ConfigFile: file, Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.issuers.cancel()
	first := a.issuers.current.Load()
	for _, text := range []string{"", "anonymous: {enabled: true}\n", "anonymous: {enabled: false}\n"} {
		write(i.config(mapping + text))
		if !a.issuers.reload(t.Context()) || a.issuers.current.Load() != first {
			t.Errorf("anonymous requests follow the file: %q", text)
		}
	}
	late := newIssuer(t)
	late.down.Store(true)
	write(late.config(mapping + anonymous))
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if a.issuers.reload(short) || a.issuers.current.Load() != first {
		t.Error("an unhealthy issuer is used")
	}
	late.down.Store(false)
	if !a.issuers.reload(t.Context()) || a.issuers.current.Load() == first {
		t.Error("an issuer that became healthy is not used")
	}
}

func FuzzAuthenticationConfiguration(f *testing.F) {
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = parseConfiguration(data) })
}

func TestWebhook(t *testing.T) {
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked++
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(req.Body).Decode(&review)
		if review.Spec.Token == "good" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane", Groups: []string{"g"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "webhook.conf")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: "+server.URL+
		", insecure-skip-tls-verify: true}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\ncurrent-context: c\nusers: [{name: u, user: {}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Log: slog.Default(), Webhook: Webhook{ConfigFile: file, Version: "v1", CacheTTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		resp, ok, err := a.AuthenticateToken(t.Context(), "good")
		if !ok || err != nil || resp.User.GetName() != "jane" {
			t.Fatalf("%+v %v", resp, err)
		}
	}
	if asked != 1 {
		t.Errorf("%d requests", asked)
	}
	if _, ok, _ := a.AuthenticateToken(t.Context(), "bad"); ok {
		t.Error("an invalid token is accepted")
	}
}
