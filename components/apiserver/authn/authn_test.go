package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testwait"
)

type env struct {
	set *pki.Set
	a   *Authenticator
}

func newEnv(t testing.TB, change func(*Config)) *env {
	t.Helper()
	set, err := pki.Ensure(t.TempDir(), pki.Config{NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		ClientCAFile:     set.CA.CertFile,
		FrontProxyCAFile: set.FrontProxyCA.CertFile,
		FrontProxy:       FrontProxy{AllowedNames: []string{"front-proxy-client"}},
		Anonymous:        true,
		Log:              slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &env{set, a}
}

func request(certs ...*x509.Certificate) *http.Request {
	r := httptest.NewRequest("GET", "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

func cert(t testing.TB, ca *pki.CA, spec pki.Spec) *x509.Certificate {
	t.Helper()
	pair, err := ca.NewPair(spec)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Cert
}

func TestRequests(t *testing.T) {
	e := newEnv(t, func(c *Config) {
		c.Tokens = []authenticator.Token{authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			switch token {
			case "good":
				return &authenticator.Response{User: &user.DefaultInfo{Name: "tom", Groups: []string{"g"}}}, true, nil
			case "bad":
				return nil, false, errors.New("bad token")
			}
			return nil, false, nil
		})}
	})
	other, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	expired := pki.Client("late")
	expired.Validity = -time.Minute
	with := func(r *http.Request, headers ...string) *http.Request {
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return r
	}
	proxied := []string{"X-Remote-User", "ann", "X-Remote-Group", "a", "X-Remote-Group", "b", "X-Remote-Extra-Scopes%2fx", "v", "X-Remote-Uid", "7"}
	tests := []struct {
		name   string
		req    *http.Request
		user   string
		groups []string
		err    bool
	}{
		{"nothing", request(), "system:anonymous", []string{"system:unauthenticated"}, false},
		{"plain HTTP", httptest.NewRequest("GET", "/", nil), "system:anonymous", []string{"system:unauthenticated"}, false},
		{"client certificate", request(cert(t, e.set.CA, pki.Node("n"))), "system:node:n", []string{"system:nodes", "system:authenticated"}, false},
		{"no common name", request(cert(t, e.set.CA, pki.Client(""))), "system:anonymous", []string{"system:unauthenticated"}, false},
		{"expired", request(cert(t, e.set.CA, expired)), "", nil, true},
		{"server certificate", request(cert(t, e.set.CA, pki.Server("x"))), "", nil, true},
		{"other authority", request(cert(t, other.CA, pki.Client("x"))), "", nil, true},
		{"bearer token", with(request(), "Authorization", "Bearer good"), "tom", []string{"g", "system:authenticated"}, false},
		{"bad token is never anonymous", with(request(), "Authorization", "Bearer bad"), "", nil, true},
		{"unknown token is never anonymous", with(request(), "Authorization", "Bearer unknown"), "", nil, true},
		{"basic is nothing", with(request(), "Authorization", "Basic Zm9vOmJhcg=="), "system:anonymous", []string{"system:unauthenticated"}, false},
		{"websocket token", with(request(), "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Protocol",
			"base64url.bearer.authorization.k8s.io."+base64.RawURLEncoding.EncodeToString([]byte("good"))+", x"), "tom", []string{"g", "system:authenticated"}, false},
		{"front proxy", with(request(e.set.FrontProxyClient.Cert), proxied...), "ann", []string{"a", "b", "system:authenticated"}, false},
		{"headers without the proxy", with(request(), proxied...), "system:anonymous", []string{"system:unauthenticated"}, false},
		{"headers from a client", with(request(cert(t, e.set.CA, pki.Client("eve"))), proxied...), "eve", []string{"system:authenticated"}, false},
		{"headers from another proxy", with(request(cert(t, e.set.FrontProxyCA, pki.Client("eve"))), proxied...), "", nil, true},
		{"certificate wins over token", with(request(cert(t, e.set.CA, pki.Client("eve"))), "Authorization", "Bearer good"), "eve", []string{"system:authenticated"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, attempt := range []string{"first", "remembered"} {
				req := tt.req.Clone(t.Context())
				resp, ok, err := e.a.AuthenticateRequest(req)
				if tt.err {
					if ok || err == nil {
						t.Errorf("%s: %v %v", attempt, ok, err)
					}
					continue
				}
				if !ok || err != nil {
					t.Fatalf("%s: %v %v", attempt, ok, err)
				}
				for h := range req.Header {
					if strings.HasPrefix(h, "X-Remote-") {
						t.Errorf("%s: %s is forwarded", attempt, h)
					}
				}
				if resp.User.GetName() != tt.user || !slices.Equal(resp.User.GetGroups(), tt.groups) {
					t.Errorf("%s: %+v", attempt, resp.User)
				}
			}
		})
	}
}

func TestFrontProxyUser(t *testing.T) {
	e := newEnv(t, nil)
	req := request(e.set.FrontProxyClient.Cert)
	req.Header.Set("X-Remote-User", "ann")
	req.Header.Set("X-Remote-Uid", "7")
	req.Header.Set("X-Remote-Extra-Example.org%2fscopes", "v")
	resp, ok, err := e.a.AuthenticateRequest(req)
	if !ok || err != nil {
		t.Fatal(err)
	}
	if resp.User.GetUID() != "7" || !slices.Equal(resp.User.GetExtra()["example.org/scopes"], []string{"v"}) {
		t.Errorf("%+v", resp.User)
	}
	for h := range req.Header {
		if strings.HasPrefix(h, "X-Remote-") {
			t.Errorf("header %s stayed", h)
		}
	}
}

func TestAnonymous(t *testing.T) {
	off := newEnv(t, func(c *Config) { c.Anonymous = false })
	if _, ok, err := off.a.AuthenticateRequest(request()); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	paths := newEnv(t, func(c *Config) { c.AnonymousPaths = []string{"/livez"} })
	if _, ok, _ := paths.a.AuthenticateRequest(request()); ok {
		t.Error("anonymous at another path")
	}
	r := request()
	r.URL.Path = "/livez"
	if _, ok, _ := paths.a.AuthenticateRequest(r); !ok {
		t.Error("not anonymous at its path")
	}
}

func TestVerificationCache(t *testing.T) {
	e := newEnv(t, nil)
	v := newVerifier(e.a.clientCA)
	now := time.Now()
	v.now = func() time.Time { return now }
	leaf := cert(t, e.set.CA, pki.Client("u"))
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	first, err := v.verify(state)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := v.verify(state); again != first {
		t.Error("verified twice")
	}
	now = leaf.NotAfter.Add(time.Second)
	if _, err := v.verify(state); err == nil {
		t.Error("an expired certificate is accepted from the cache")
	}
}

func TestReload(t *testing.T) {
	e := newEnv(t, nil)
	next, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.a.Run(ctx) }()
	oldCert, newCert := cert(t, e.set.CA, pki.Client("old")), cert(t, next.CA, pki.Client("new"))
	if _, ok, _ := e.a.AuthenticateRequest(request(oldCert)); !ok {
		t.Fatal("not accepted before")
	}
	replace := func(data []byte) {
		tmp := filepath.Join(filepath.Dir(e.set.CA.CertFile), "tmp")
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, e.set.CA.CertFile); err != nil {
			t.Fatal(err)
		}
	}
	// An invalid file is ignored.
	replace([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	replace(next.CA.CertPEM)
	testwait.Until(t, "the CA bundle to be reloaded", func() bool {
		_, ok, _ := e.a.AuthenticateRequest(request(newCert))
		return ok
	})
	if _, ok, _ := e.a.AuthenticateRequest(request(oldCert)); ok {
		t.Error("a cached verification is used after the CA was removed")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBootstrapTokens(t *testing.T) {
	good := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
			Type:       "bootstrap.kubernetes.io/token",
			Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
				"expiration":        []byte(time.Now().Add(time.Hour).Format(time.RFC3339)),
				"auth-extra-groups": []byte("system:bootstrappers:kubeadm:default-node-token"),
			},
		}
	}
	const token = "abcdef.0123456789abcdef"
	tests := []struct {
		name   string
		token  string
		change func(s *corev1.Secret)
		ok     bool
	}{
		{"good", token, nil, true},
		{"no expiry", token, func(s *corev1.Secret) { delete(s.Data, "expiration") }, true},
		{"other secret", "abcdef.0123456789abcdee", nil, false},
		{"unknown", "abcdee.0123456789abcdef", nil, false},
		{"not a token", "abcdef.0123456789ABCDEF", nil, false},
		{"expired", token, func(s *corev1.Secret) { s.Data["expiration"] = []byte("2020-01-01T00:00:00Z") }, false},
		{"expiry unreadable", token, func(s *corev1.Secret) { s.Data["expiration"] = []byte("tomorrow") }, false},
		{"other usage", token, func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, false},
		{"other type", token, func(s *corev1.Secret) { s.Type = "Opaque" }, false},
		{"other id", token, func(s *corev1.Secret) { s.Data["token-id"] = []byte("zzzzzz") }, false},
		{"forbidden group", token, func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }, false},
		{"being deleted", token, func(s *corev1.Secret) {
			s.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			s.Finalizers = []string{"x/y"}
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := good()
			if tt.change != nil {
				tt.change(s)
			}
			e := newEnv(t, func(c *Config) { c.BootstrapTokens = fake.NewClientset(s) })
			resp, ok, _ := e.a.AuthenticateToken(t.Context(), tt.token)
			if ok != tt.ok {
				t.Fatal(ok)
			}
			if ok && (resp.User.GetName() != "system:bootstrap:abcdef" || !slices.Contains(resp.User.GetGroups(), "system:bootstrappers") || !slices.Contains(resp.User.GetGroups(), "system:authenticated")) {
				t.Errorf("%+v", resp.User)
			}
		})
	}
}

func FuzzFrontProxyHeaders(f *testing.F) {
	e := newEnv(f, nil)
	f.Add("X-Remote-User", "ann", "X-Remote-Extra-%", "x")
	f.Add("X-Remote-Group", "system:masters", "X-Remote-Extra-%2", "")
	eve := cert(f, e.set.CA, pki.Client("eve"))
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		// Without the proxy's certificate the headers must be ignored.
		r := request(eve)
		r.Header[k1] = []string{v1}
		r.Header[k2] = append(r.Header[k2], v2)
		resp, ok, err := e.a.AuthenticateRequest(r)
		if !ok || err != nil || resp.User.GetName() != "eve" || len(resp.User.GetGroups()) != 1 {
			t.Errorf("%v %v %v", resp, ok, err)
		}
		r = request(e.set.FrontProxyClient.Cert)
		r.Header[k1] = []string{v1}
		r.Header[k2] = append(r.Header[k2], v2)
		if resp, ok, _ := e.a.AuthenticateRequest(r); ok && resp.User.GetName() == "" {
			t.Error("a user without a name")
		}
	})
}

func BenchmarkClientCertificate(b *testing.B) {
	e := newEnv(b, nil)
	req := request(cert(b, e.set.CA, pki.Client("u")))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := e.a.AuthenticateRequest(req); !ok {
			b.Fatal(err)
		}
	}
}

// TestOverlap checks that client CAs and front proxy CAs must not overlap if all proxy names are
// allowed.
func TestOverlap(t *testing.T) {
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		proxies string
		names   []string
		ok      bool
	}{
		{set.CA.CertFile, nil, false},
		{set.CA.CertFile, []string{"proxy"}, true},
		{set.FrontProxyCA.CertFile, nil, true},
	} {
		_, err := New(Config{ClientCAFile: set.CA.CertFile, FrontProxyCAFile: tc.proxies, FrontProxy: FrontProxy{AllowedNames: tc.names}, Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, errOverlap) {
			t.Errorf("%s %v: %v", tc.proxies, tc.names, err)
		}
	}
}
