package joindiscovery

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/bootstraptokens"
	"hyperkube/internal/credentials/pki"
)

func TestTokens(t *testing.T) {
	seen := map[Token]bool{}
	for range 100 {
		token := NewToken()
		again, err := ParseToken(token.String())
		if err != nil || again != token || seen[token] {
			t.Fatalf("%s: %v", token, err)
		}
		seen[token] = true
	}
	for _, text := range []string{"", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef ", "abcdef.0123456789abcdefg"} {
		if _, err := ParseToken(text); err == nil {
			t.Errorf("%q accepted as a token", text)
		}
	}
}

func TestRecords(t *testing.T) {
	full := &Record{
		Token: Token{"abcdef", "0123456789abcdef"}, Expires: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		Usages: []string{Authentication, Signing}, Groups: []string{NodeGroup}, Description: "for tests",
	}
	for _, r := range []*Record{full, {Token: full.Token, Usages: []string{Signing}}} {
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
		s := r.Secret()
		if s.Namespace != "kube-system" || s.Name != "bootstrap-token-abcdef" || string(s.Data["usage-bootstrap-signing"]) != "true" {
			t.Errorf("secret %+v", s)
		}
		again, err := FromSecret(s)
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v, %v; want %+v", again, err, r)
		}
	}
	for name, change := range map[string]func(*corev1.Secret){
		"another type": func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		"another name": func(s *corev1.Secret) { s.Name = "bootstrap-token-ghijkl" },
		"no key":       func(s *corev1.Secret) { delete(s.Data, "token-secret") },
		"invalid time": func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") },
	} {
		s := full.Secret()
		change(s)
		if _, err := FromSecret(s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, r := range []*Record{{}, {Usages: []string{"unknown"}}, {Usages: []string{Signing}, Groups: []string{"system:masters"}}} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
	}
}

// serveCluster serves the cluster information of a control plane node, and calls onRequest at each request.
func serveCluster(t *testing.T, onRequest ...func()) (d Discovery, set *pki.Set, info *corev1.ConfigMap) {
	t.Helper()
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	info = &corev1.ConfigMap{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-public/configmaps/cluster-info" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s with %q", r.URL, r.Header.Get("Authorization"))
		}
		for _, f := range onRequest {
			f()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(info)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{set.APIServer.TLS()}}
	s.StartTLS()
	t.Cleanup(s.Close)
	made, err := Cluster{Server: s.URL, CA: set.CA.CertPEM}.Info()
	if err != nil {
		t.Fatal(err)
	}
	*info = *made
	info.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	d = Discovery{Endpoint: strings.TrimPrefix(s.URL, "https://"), Token: NewToken(), Hashes: []string{Hash(set.CA.Cert)}}
	sign(t, info, d.Token)
	return d, set, info
}

func sign(t *testing.T, info *corev1.ConfigMap, token Token) {
	t.Helper()
	signature, err := bootstraptokens.Sign(info.Data[kubeconfigKey], token.ID, token.Key)
	if err != nil {
		t.Fatal(err)
	}
	info.Data[bootstraptokens.SignatureKey(token.ID)] = signature
}

func TestFind(t *testing.T) {
	d, set, _ := serveCluster(t)
	c, err := d.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Server != "https://"+d.Endpoint || string(c.CA) != string(set.CA.CertPEM) {
		t.Errorf("found %+v", c)
	}
	d.Hashes, d.Unsafe = nil, true
	if _, err := d.Find(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFindRefusesImpostor(t *testing.T) {
	other, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Discovery, *corev1.ConfigMap)
		want   string
	}{
		"wrong key": {func(d *Discovery, _ *corev1.ConfigMap) { d.Token.Key = NewToken().Key }, "signature of the cluster information is not valid"},
		"changed": {func(_ *Discovery, info *corev1.ConfigMap) {
			info.Data[kubeconfigKey] = strings.ReplaceAll(info.Data[kubeconfigKey], "127.0.0.1", "127.0.0.2")
		}, "signature of the cluster information is not valid"},
		"another CA": {func(d *Discovery, _ *corev1.ConfigMap) { d.Hashes = []string{Hash(other.CA.Cert)} }, "none of the given hashes"},
		"CA certificate without key": {func(d *Discovery, info *corev1.ConfigMap) {
			// An attacker with the token impersonates a cluster whose CA certificate is known,
			// without the key of the CA.
			stolen, _ := Cluster{Server: "https://" + d.Endpoint, CA: other.CA.CertPEM}.Info()
			info.Data = stolen.Data
			sign(t, info, d.Token)
			d.Hashes = []string{Hash(other.CA.Cert)}
		}, "verifying the API server"},
		"no hash":      {func(d *Discovery, _ *corev1.ConfigMap) { d.Hashes = nil }, "hash of the cluster CA is required"},
		"invalid hash": {func(d *Discovery, _ *corev1.ConfigMap) { d.Hashes = []string{"md5:00"} }, "is not a valid CA hash"},
		"no port":      {func(d *Discovery, _ *corev1.ConfigMap) { d.Endpoint = "example" }, "HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _, info := serveCluster(t)
			c.change(&d, info)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if found, err := d.Find(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %+v, %v; want an error with %q", found, err, c.want)
			}
		})
	}
}

func TestWaitsForTheSignature(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	times := 0
	d, _, info := serveCluster(t, func() {
		if times++; times == 2 {
			cancel()
		}
	})
	delete(info.Data, bootstraptokens.SignatureKey(d.Token.ID))
	if _, err := d.Find(ctx); err == nil || !strings.Contains(err.Error(), "no signature of the token") {
		t.Error(err)
	}
}

// TestClock: if the API server's certificate is not valid yet or has expired according to the
// machine's clock, the error says so, and discovery retries.
func TestClock(t *testing.T) {
	for want, shift := range map[string]time.Duration{
		"is not valid yet according to this machine's clock": time.Hour,
		"has expired according to this machine's clock":      -time.Hour,
	} {
		d, set, info := serveCluster(t)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(info)
		}))
		shifted := *set.APIServer.Cert
		shifted.NotBefore = time.Now().Add(shift - time.Minute)
		shifted.NotAfter = time.Now().Add(shift + time.Minute)
		der, err := x509.CreateCertificate(rand.Reader, &shifted, set.CA.Cert, shifted.PublicKey, set.CA.Key)
		if err != nil {
			t.Fatal(err)
		}
		s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: set.APIServer.Key}}}
		s.StartTLS()
		t.Cleanup(s.Close)
		d.Endpoint = strings.TrimPrefix(s.URL, "https://")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d.OnError = func(error) { cancel() }
		if _, err := d.Find(ctx); !errors.Is(err, errNotReady) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// TestSkew: the clock difference is measured from responses, and discovery waits while it exceeds
// the maximum.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		ahead time.Duration
		want  string // empty: discovery succeeds
	}{
		{0, ""}, {4 * time.Minute, ""}, {-4 * time.Minute, ""},
		{10 * time.Minute, "behind the cluster's"}, {-10 * time.Minute, "ahead of the cluster's"},
	} {
		d, set, info := serveCluster(t)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Date", time.Now().Add(c.ahead).UTC().Format(http.TimeFormat))
			_ = json.NewEncoder(w).Encode(info)
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{set.APIServer.TLS()}}
		s.StartTLS()
		t.Cleanup(s.Close)
		d.Endpoint, d.MaxSkew = strings.TrimPrefix(s.URL, "https://"), 5*time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d.OnError = func(error) { cancel() }
		found, err := d.Find(ctx)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%v ahead: %v", c.ahead, err)
		case c.want == "" && found.ClockOffset.Round(time.Minute) != c.ahead:
			t.Errorf("%v ahead, measured %v", c.ahead, found.ClockOffset)
		case c.want != "" && (!errors.Is(err, errNotReady) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v ahead: found %+v, %v; want an error with %q", c.ahead, found, err, c.want)
		}
	}
}
