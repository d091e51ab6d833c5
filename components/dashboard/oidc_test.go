package dashboard

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"hyperkube/components/dashboard/oidclogin"
)

// newProvider returns an OpenID Connect provider at which every browser is logged in: it redirects them with a code, for
// which it issues token.
func newProvider(t *testing.T, token *string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, map[string]string{"issuer": server.URL, "authorization_endpoint": server.URL + "/auth", "token_endpoint": server.URL + "/token"})
	})
	mux.HandleFunc("GET /auth", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"state": {q.Get("state")}, "code": {"x"}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, map[string]string{"access_token": "a", "token_type": "Bearer", "id_token": *token})
	})
	return server
}

// TestOIDC logs a browser in at a provider, and checks that logins that another page has begun are refused.
func TestOIDC(t *testing.T) {
	token := goodToken
	provider := newProvider(t, &token)
	logins, err := oidclogin.New(oidclogin.Config{Issuer: provider.URL, ClientID: "dashboard", Client: provider.Client()})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := (&serveOptions{}).serving()
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, func(cfg *Config) { cfg.Login, cfg.Certificate, cfg.OIDC = true, certificate, logins })
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // both certificates are self-signed
	t.Cleanup(transport.CloseIdleConnections)
	browser := &http.Client{Transport: transport, Jar: jar}
	send := func(client *http.Client, method, address, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(data)
	}
	base := "https://" + p.address
	if _, body := send(browser, http.MethodGet, base+"/login", ""); !strings.Contains(body, `"provider":"`+strings.TrimPrefix(provider.URL, "https://")+`"`) {
		t.Errorf("the ways to log in are %s", body)
	}
	resp, body := send(browser, http.MethodGet, base+"/oidc/login", "")
	_, once, _ := strings.Cut(resp.Request.URL.Fragment, "token=")
	if resp.StatusCode != http.StatusOK || once == "" || once == goodToken {
		t.Fatalf("the login ended at %s with %s %s", resp.Request.URL, resp.Status, body)
	}
	exchange := func() int {
		resp, body := send(browser, http.MethodPost, base+"/session", `{"token":"`+once+`"}`)
		var got credentials
		_ = json.Unmarshal([]byte(body), &got) // it is not JSON if the exchange fails
		p.header = got.Token
		return resp.StatusCode
	}
	if code := exchange(); code != http.StatusOK || p.header == "" {
		t.Fatalf("exchanging the one-time token: %d", code)
	}
	if code := exchange(); code != http.StatusUnauthorized {
		t.Errorf("exchanging it again: %d", code)
	}

	// Another browser cannot complete the login.
	stop := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	begun, _ := send(&http.Client{Transport: transport, CheckRedirect: stop}, http.MethodGet, base+"/oidc/login", "")
	at, err := url.Parse(begun.Header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	resp, body = send(browser, http.MethodGet, base+callbackPath+"?"+url.Values{"state": {at.Query().Get("state")}, "code": {"x"}}.Encode(), "")
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "has not begun the login") {
		t.Errorf("the login of another browser: %s %s", resp.Status, body)
	}
	// The API server decides whether it accepts the provider's tokens.
	token = "of another issuer"
	if resp, body := send(browser, http.MethodGet, base+"/oidc/login", ""); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "same provider") {
		t.Errorf("a token that the API server rejects: %s %s", resp.Status, body)
	}
}
