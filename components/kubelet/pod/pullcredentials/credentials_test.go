package pullcredentials

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
)

const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"

const provider = "apiVersion: credentialprovider.kubelet.k8s.io/v1, defaultCacheDuration: 1m, matchImages: [r.example]"

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct{ text, err string }{
		{head + "providers: [{name: p, " + provider + "}]", ""},
		{head, "at least 1 item"},
		{"kind: Other", "want a CredentialProviderConfig"},
		{head + "provider: []", "unknown field"},
		{head + "providers: [{name: a/b, " + provider + "}]", "name must be"},
		{head + "providers: [{name: p, " + provider + "}, {name: p, " + provider + "}]", "twice"},
		{head + "providers: [{name: p, apiVersion: v0, defaultCacheDuration: -1s, matchImages: []}]", "is not supported"},
		{head + "providers: [{name: p, " + provider + ", tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Some, requireServiceAccount: true}}]", "want ServiceAccount or Token"},
		{head + "providers: [{name: p, " + provider + ", tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [x]}}]", "must be true"},
	} {
		path := filepath.Join(dir, fmt.Sprintf("%d.yaml", i))
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := Load(path)
		if c.err == "" && (err != nil || len(list) != 1) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "a"} {
		if err := os.WriteFile(filepath.Join(dir, "d", name+".yaml"), []byte(head+"providers: [{name: "+name+", "+provider+"}]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := Load(filepath.Join(dir, "d")); err != nil || len(list) != 2 || list[0].Name != "a" {
		t.Errorf("a directory: %v, %v", list, err)
	}
}

// TestFor runs a provider that counts its calls and responds with values of the request.
func TestFor(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
echo x >> ` + dir + `/asked
in=$(cat)
user=$(printf %s "$in" | sed 's/.*"serviceAccountToken":"\([^"]*\)".*/\1/;t;s/.*/anonymous/')
printf '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"%s","auth":{"r.example":{"username":"short","password":"p"},"r.example/team":{"username":"%s","password":"%s"},"other.example":{"username":"o","password":"o"}}}' "$KEY" "$user" "$1"
`
	if err := os.WriteFile(filepath.Join(dir, "p"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := func() int {
		raw, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return len(raw) / 2
	}
	yes := true
	now := time.Now()
	make := func(key string, token *kubeletv1.ServiceAccountTokenAttributes) *Providers {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, "asked"))
		p, err := New(Config{
			Providers: []kubeletv1.CredentialProvider{{
				Name: "p", APIVersion: "credentialprovider.kubelet.k8s.io/v1", DefaultCacheDuration: &metav1.Duration{Duration: time.Minute},
				MatchImages: []string{"r.example"}, Args: []string{"word"}, Env: []kubeletv1.ExecEnvVar{{Name: "KEY", Value: key}}, TokenAttributes: token,
			}},
			Dir: dir, Match: func(pattern, image string) bool { return strings.HasPrefix(image, pattern) },
			Account: func(_ context.Context, pod *v1.Pod) (*v1.ServiceAccount, error) {
				return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName, UID: "u", Annotations: map[string]string{"k": "v"}}}, nil
			},
			Token: func(_ context.Context, pod *v1.Pod, audience string) (string, error) {
				return audience + "-" + pod.Name, nil
			},
			Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	pod := func(name, account string) *v1.Pod {
		p := &v1.Pod{}
		p.Name, p.Namespace, p.Spec.ServiceAccountName = name, "ns", account
		return p
	}
	for _, c := range []struct {
		key    string
		images []string
		asked  int
	}{
		{"Image", []string{"r.example/team/a:1", "r.example/team/a:2", "r.example/team/b"}, 2},
		{"Registry", []string{"r.example/team/a:1", "r.example/team/b", "elsewhere/x"}, 1},
		{"Global", []string{"r.example/team/a:1", "r.example/x"}, 1},
		{"Nonsense", []string{"r.example/team/a", "r.example/team/a"}, 2},
	} {
		p := make(c.key, nil)
		for _, image := range c.images {
			got := p.For(t.Context(), pod("p", ""), image)
			if c.key == "Nonsense" {
				if len(got) > 0 {
					t.Errorf("%s: %v", c.key, got)
				}
				continue
			}
			if strings.HasPrefix(image, "r.example/team") && (len(got) != 2 || got[0].Auth.Username != "anonymous" || got[0].Auth.Password != "word" || got[0].Account != nil) {
				t.Errorf("%s of %s: %v", c.key, image, got)
			}
		}
		if n := asked(); n != c.asked {
			t.Errorf("%s: %d calls, want %d", c.key, n, c.asked)
		}
	}
	p := make("Global", nil)
	p.For(t.Context(), pod("p", ""), "r.example/a")
	now = now.Add(2 * time.Minute)
	p.For(t.Context(), pod("p", ""), "r.example/a")
	if n := asked(); n != 2 {
		t.Errorf("after expiry: %d calls", n)
	}
	for _, c := range []struct {
		cache kubeletv1.ServiceAccountTokenCacheType
		asked int
	}{{kubeletv1.ServiceAccountServiceAccountTokenCacheType, 2}, {kubeletv1.TokenServiceAccountTokenCacheType, 3}} {
		p := make("Registry", &kubeletv1.ServiceAccountTokenAttributes{
			ServiceAccountTokenAudience: "aud", CacheType: c.cache, RequireServiceAccount: &yes, RequiredServiceAccountAnnotationKeys: []string{"k"},
		})
		for _, one := range []*v1.Pod{pod("a", "sa"), pod("b", "sa"), pod("c", "other"), pod("d", "")} {
			got := p.For(t.Context(), one, "r.example/team/x")
			if one.Name == "d" {
				if len(got) > 0 {
					t.Errorf("without an account: %v", got)
				}
				continue
			}
			if len(got) != 2 || !strings.HasPrefix(got[0].Auth.Username, "aud-") || got[0].Account.Name != one.Spec.ServiceAccountName {
				t.Errorf("%s: %v", one.Name, got)
			}
		}
		if n := asked(); n != c.asked {
			t.Errorf("%s: %d calls, want %d", c.cache, n, c.asked)
		}
	}
	p.cfg.Providers[0].TokenAttributes = &kubeletv1.ServiceAccountTokenAttributes{
		ServiceAccountTokenAudience: "aud", CacheType: kubeletv1.TokenServiceAccountTokenCacheType, RequireServiceAccount: &yes, RequiredServiceAccountAnnotationKeys: []string{"missing"},
	}
	if got := p.For(t.Context(), pod("a", "sa"), "r.example/team/x"); len(got) > 0 {
		t.Errorf("without its annotation: %v", got)
	}
	if _, err := New(Config{Dir: dir, Providers: []kubeletv1.CredentialProvider{{Name: "none"}}}); err == nil {
		t.Error("a missing program was accepted")
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(`{"kind":"CredentialProviderResponse","apiVersion":"v","auth":{"a":{"username":"u"}}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		_, _ = decodeResponse(raw, "v")
		if list, err := decode(raw); err == nil {
			_ = validate(list)
		}
	})
}
