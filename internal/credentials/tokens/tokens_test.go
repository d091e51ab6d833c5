package tokens

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// objects is an in-memory Getter.
type objects struct {
	accounts map[string]*corev1.ServiceAccount
	pods     map[string]*corev1.Pod
	secrets  map[string]*corev1.Secret
	nodes    map[string]*corev1.Node
}

func get[T any](m map[string]*T, name string) (*T, error) {
	if o := m[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("things"), name)
}

func (o objects) ServiceAccount(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
	return get(o.accounts, name)
}
func (o objects) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return get(o.pods, name)
}
func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return get(o.secrets, name)
}
func (o objects) Node(_ context.Context, name string) (*corev1.Node, error) {
	return get(o.nodes, name)
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}
}

func testObjects() objects {
	return objects{
		accounts: map[string]*corev1.ServiceAccount{"sa": {ObjectMeta: meta("sa")}, "other": {ObjectMeta: meta("other")}},
		pods:     map[string]*corev1.Pod{"pod": {ObjectMeta: meta("pod"), Spec: corev1.PodSpec{ServiceAccountName: "sa", NodeName: "node"}}},
		secrets:  map[string]*corev1.Secret{"secret": {ObjectMeta: meta("secret")}},
		nodes:    map[string]*corev1.Node{"node": {ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}}},
	}
}

const issuer = "https://kubernetes.default.svc.cluster.local"

type fixture struct {
	objects
	now      time.Time
	key      crypto.Signer
	issuer   *Issuer
	verifier *Verifier
}

func newFixture(t testing.TB, key crypto.Signer) *fixture {
	t.Helper()
	if key == nil {
		var err error
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{objects: testObjects(), now: time.Now().Truncate(time.Second), key: key}
	clock := func() time.Time { return f.now }
	var err error
	f.issuer, err = NewIssuer(IssuerConfig{Issuer: issuer, Key: key, Audiences: []string{issuer, "k8s"},
		MaxExpiration: 30 * 24 * time.Hour, ExtendExpiration: true, Objects: f.objects, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := newKeySet(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	f.verifier, err = NewVerifier(VerifierConfig{Issuers: []string{issuer}, Keys: keys, Audiences: []string{issuer, "k8s"}, Objects: f.objects, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) request(t testing.TB, spec authenticationv1.TokenRequestSpec) *authenticationv1.TokenRequest {
	t.Helper()
	out, err := f.issuer.Request(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func boundTo(kind, name string, uid types.UID) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name, UID: uid}
}

func seconds(n int64) *int64 { return &n }

func TestRequest(t *testing.T) {
	tests := []struct {
		name    string
		account string
		req     authenticationv1.TokenRequest
		err     string
		expires time.Duration // reported in the status
		valid   time.Duration // in the token
	}{
		{name: "defaults", expires: time.Hour, valid: time.Hour},
		{name: "bound to its pod", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "pod-uid"), ExpirationSeconds: seconds(7200)}}, expires: 2 * time.Hour, valid: 2 * time.Hour},
		{name: "extended", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "pod-uid"), ExpirationSeconds: seconds(3607)}}, expires: 3607 * time.Second, valid: 365 * 24 * time.Hour},
		{name: "not extended for others", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}, BoundObjectRef: boundTo("Pod", "pod", ""), ExpirationSeconds: seconds(3607)}}, expires: 3607 * time.Second, valid: 3607 * time.Second},
		{name: "clamped", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1 << 31)}}, expires: 30 * 24 * time.Hour, valid: 30 * 24 * time.Hour},
		{name: "too short", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(599)}}, err: "may not specify a duration less than 10 minutes"},
		{name: "too long", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1<<32 + 1)}}, err: "may not specify a duration larger than 2^32 seconds"},
		{name: "attested", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Attestations: map[string]authenticationv1.AttestationValue{"k": {"v"}}, ExpirationSeconds: seconds(599)}}, err: "spec.attestations: Invalid value: {\"k\":[\"v\"]}: attestations may only be specified with a webhook bound object reference"},
		{name: "no such account", account: "absent", err: `"absent" not found`},
		{name: "other name", req: authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, err: "must match the service account name if specified"},
		{name: "other namespace", req: authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "x"}}, err: "must match the service account namespace if specified"},
		{name: "pod of another account", account: "other", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "")}}, err: `cannot bind token for serviceaccount "other" to pod running with different serviceaccount name.`},
		{name: "no such pod", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "absent", "")}}, err: `"absent" not found`},
		{name: "earlier pod", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "old")}}, err: "the UID in the bound object reference (old) does not match"},
		{name: "other kind", req: authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("ConfigMap", "x", "")}}, err: "cannot bind token to object of type /v1, Kind=ConfigMap"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, nil)
			account := tt.account
			if account == "" {
				account = "sa"
			}
			out, err := f.issuer.Request(t.Context(), "ns", account, &tt.req)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := out.Status.ExpirationTimestamp.Sub(f.now); got != tt.expires {
				t.Errorf("expires after %v, want %v", got, tt.expires)
			}
			tok, _, err := f.verifier.verify(out.Status.Token)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.claims.Expiry.Time().Sub(f.now); got != tt.valid {
				t.Errorf("valid for %v, want %v", got, tt.valid)
			}
			if len(out.Spec.Audiences) == 0 || !slices.Equal(out.Spec.Audiences, tok.claims.Audience) {
				t.Errorf("audiences %q and %q", out.Spec.Audiences, tok.claims.Audience)
			}
		})
	}
}

// TestAudience checks that a single audience is encoded as a list, and that both forms are decoded.
func TestAudience(t *testing.T) {
	for _, tt := range []struct{ in, out string }{
		{`{"aud":"a"}`, `{"aud":["a"]}`},
		{`{"aud":["a","b"]}`, `{"aud":["a","b"]}`},
		{`{}`, `{}`},
	} {
		var c claims
		if err := json.Unmarshal([]byte(tt.in), &c); err != nil {
			t.Fatal(err)
		}
		if out, err := json.Marshal(c); err != nil || string(out) != tt.out {
			t.Errorf("%s became %s, %v", tt.in, out, err)
		}
	}
}

func TestValidity(t *testing.T) {
	pod := authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "pod-uid")}
	gone := func(m *metav1.ObjectMeta, at time.Time) { m.DeletionTimestamp = &metav1.Time{Time: at} }
	tests := []struct {
		name   string
		spec   authenticationv1.TokenRequestSpec
		ask    authenticator.Audiences
		change func(f *fixture)
		err    string
	}{
		{name: "plain"},
		{name: "pod", spec: pod},
		{name: "Secret", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Secret", "secret", "")}},
		{name: "node", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Node", "node", "")}},
		{name: "expired", change: func(f *fixture) { f.now = f.now.Add(time.Hour + 2*time.Minute) }, err: "has expired"},
		{name: "not yet", change: func(f *fixture) { f.now = f.now.Add(-2 * time.Minute) }, err: "could not be validated"},
		{name: "account gone", change: func(f *fixture) { delete(f.accounts, "sa") }, err: "invalidated"},
		{name: "account recreated", change: func(f *fixture) { f.accounts["sa"].UID = "new" }, err: "does not match"},
		{name: "pod gone", spec: pod, change: func(f *fixture) { delete(f.pods, "pod") }, err: "invalidated"},
		{name: "pod recreated", spec: pod, change: func(f *fixture) { f.pods["pod"].UID = "new" }, err: "invalidated"},
		{name: "pod in its grace period", spec: pod, change: func(f *fixture) { gone(&f.pods["pod"].ObjectMeta, f.now.Add(30*time.Second)) }},
		{name: "pod shortly after its grace period", spec: pod, change: func(f *fixture) { gone(&f.pods["pod"].ObjectMeta, f.now.Add(-30*time.Second)) }},
		{name: "pod long after its grace period", spec: pod, change: func(f *fixture) { gone(&f.pods["pod"].ObjectMeta, f.now.Add(-2*time.Minute)) }, err: "invalidated"},
		{name: "node deleted, bound to the pod", spec: pod, change: func(f *fixture) { delete(f.nodes, "node") }},
		{name: "node gone", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Node", "node", "")}, change: func(f *fixture) { delete(f.nodes, "node") }, err: "invalidated"},
		{name: "Secret gone", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Secret", "secret", "")}, change: func(f *fixture) { delete(f.secrets, "secret") }, err: "invalidated"},
		{name: "for another", spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}, err: "invalid for the target audiences"},
		{name: "other audience, requested", spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}, ask: authenticator.Audiences{"vault"}},
		{name: "other audience requested", ask: authenticator.Audiences{"vault"}, err: "invalid for the target audiences"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, nil)
			token := f.request(t, tt.spec).Status.Token
			ctx := t.Context()
			if tt.ask != nil {
				ctx = authenticator.WithAudiences(ctx, tt.ask)
			}
			// Fill the cache, so that the next call uses it.
			_, _, _ = f.verifier.AuthenticateToken(ctx, token)
			if tt.change != nil {
				tt.change(f)
			}
			resp, ok, err := f.verifier.AuthenticateToken(ctx, token)
			if tt.err != "" {
				if ok || err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, %v, want error %q", ok, err, tt.err)
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("%v, %v", ok, err)
			}
			if resp.User.GetName() != "system:serviceaccount:ns:sa" || resp.User.GetUID() != "sa-uid" ||
				!slices.Equal(resp.User.GetGroups(), []string{"system:serviceaccounts", "system:serviceaccounts:ns"}) {
				t.Errorf("user %+v", resp.User)
			}
			if ref := tt.spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
				if got := resp.User.GetExtra()["authentication.kubernetes.io/pod-name"]; !slices.Equal(got, []string{"pod"}) {
					t.Errorf("extra %v", resp.User.GetExtra())
				}
				if got := resp.User.GetExtra()["authentication.kubernetes.io/node-uid"]; !slices.Equal(got, []string{"node-uid"}) {
					t.Errorf("extra %v", resp.User.GetExtra())
				}
			}
		})
	}
}

func TestForgedTokens(t *testing.T) {
	f := newFixture(t, nil)
	good := f.request(t, authenticationv1.TokenRequestSpec{}).Status.Token
	parts := strings.Split(good, ".")

	other := newFixture(t, nil)
	if _, ok, err := f.verifier.AuthenticateToken(t.Context(), other.request(t, authenticationv1.TokenRequestSpec{}).Status.Token); ok || err == nil {
		t.Error("a signature with another key was accepted")
	}
	if _, ok, err := f.verifier.AuthenticateToken(t.Context(), parts[0]+"."+parts[1]+"."+strings.Repeat("A", len(parts[2]))); ok || err == nil {
		t.Error("a missing signature was accepted")
	}
	// {"alg":"none"}
	if _, ok, _ := f.verifier.AuthenticateToken(t.Context(), "eyJhbGciOiJub25lIn0."+parts[1]+"."); ok {
		t.Error("an unsigned token was accepted")
	}
	// Use the public key as the secret of a symmetric signature.
	pub, err := json.Marshal(jose.JSONWebKey{Key: f.key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	hs, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: append(pub, make([]byte, 64)...)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, _, _ := f.verifier.verify(good)
	forged, err := jwt.Signed(hs).Claims(tok.claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := f.verifier.AuthenticateToken(t.Context(), forged); ok {
		t.Error("a symmetric signature was accepted")
	}
	// A token of another issuer is not an error.
	c := tok.claims
	c.Issuer = "https://accounts.example.org"
	foreign, err := jwt.Signed(f.issuer.signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{foreign, "", "abcdef.0123456789abcdef", "a.b.c"} {
		if _, ok, err := f.verifier.AuthenticateToken(t.Context(), s); ok || err != nil {
			t.Errorf("%q: %v, %v", s, ok, err)
		}
	}
}

func TestLegacy(t *testing.T) {
	f := newFixture(t, nil)
	secret := f.secrets["secret"]
	signer, err := NewSecretSigner(f.issuer.cfg.Key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signer.Sign(f.accounts["sa"], secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.verifier.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("accepted although the Secret does not contain it")
	}
	secret.Data = map[string][]byte{"token": []byte(token)}
	resp, ok, err := f.verifier.AuthenticateToken(t.Context(), token)
	if !ok || err != nil || resp.User.GetName() != "system:serviceaccount:ns:sa" {
		t.Fatalf("%v %v", ok, err)
	}
	delete(f.secrets, "secret")
	if _, ok, err := f.verifier.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("accepted without its Secret")
	}
}

func TestCacheKeepsRecent(t *testing.T) {
	f := newFixture(t, nil)
	first := f.request(t, authenticationv1.TokenRequestSpec{}).Status.Token
	for range 3 {
		if _, ok, err := f.verifier.AuthenticateToken(t.Context(), first); !ok {
			t.Fatal(err)
		}
	}
	if len(f.verifier.young) != 1 {
		t.Errorf("%d entries", len(f.verifier.young))
	}
}

func TestDiscovery(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, rsaKey)
	ec := newFixture(t, nil)
	keys, err := newKeySet(rsaKey.Public(), ec.key.Public(), rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDiscovery(issuer, "https://192.0.2.1:6443/openid/v1/jwks", keys)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	d.Configuration(rec, httptest.NewRequest("GET", ConfigurationPath, nil))
	want := `{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://192.0.2.1:6443/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","RS256"]}`
	if rec.Body.String() != want {
		t.Errorf("got %s", rec.Body)
	}
	rec = httptest.NewRecorder()
	d.JWKS(rec, httptest.NewRequest("GET", JWKSPath, nil))
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(rec.Body.Bytes(), &set); err != nil || len(set.Keys) != 2 {
		t.Fatalf("%d keys, %v", len(set.Keys), err)
	}
	if got := rec.Header().Get("Content-Type"); got != "application/jwk-set+json" {
		t.Error(got)
	}
	// Tokens can be verified with the public document only.
	for _, x := range []*fixture{f, ec} {
		parsed, err := jwt.ParseSigned(x.request(t, authenticationv1.TokenRequestSpec{}).Status.Token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
		if err != nil {
			t.Fatal(err)
		}
		var c claims
		if err := parsed.Claims(set, &c); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewDiscovery("kubernetes/serviceaccount", "https://x/", keys); err == nil {
		t.Error("an issuer that is no URL was accepted")
	}
}

func FuzzAuthenticateToken(f *testing.F) {
	fx := newFixture(f, nil)
	f.Add(fx.request(f, authenticationv1.TokenRequestSpec{}).Status.Token)
	f.Add("a.e30.b")
	f.Add("eyJhbGciOiJub25lIn0.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.")
	good := fx.request(f, authenticationv1.TokenRequestSpec{}).Status.Token
	f.Fuzz(func(t *testing.T, token string) {
		_, ok, _ := fx.verifier.AuthenticateToken(t.Context(), token)
		// Base64 with unused trailing bits has more than one encoding of the same bytes.
		if ok && !strings.HasPrefix(token, good[:20]) {
			t.Errorf("accepted %q", token)
		}
	})
}

func BenchmarkAuthenticateToken(b *testing.B) {
	f := newFixture(b, nil)
	token := f.request(b, authenticationv1.TokenRequestSpec{BoundObjectRef: boundTo("Pod", "pod", "")}).Status.Token
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := f.verifier.AuthenticateToken(b.Context(), token); !ok {
			b.Fatal(err)
		}
	}
}
