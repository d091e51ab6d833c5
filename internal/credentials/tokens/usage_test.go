package tokens

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestUsage uses tokens of Secrets and checks that the date is recorded once and that tokens marked
// as invalid are rejected.
func TestUsage(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa"}}
	kube := fake.NewClientset(secret)
	u, err := NewUsage(kube, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)
	u.now = func() time.Time { return now }
	for i := range 3 {
		if err := u.recordSecret(t.Context(), secret, sa); err != nil {
			t.Fatal(err)
		}
		if secret, err = kube.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := secret.Labels[LastUsedLabel]; got != "2026-03-04" {
			t.Fatalf("use %d: last used %q", i, got)
		}
	}
	writes := 0
	for _, a := range kube.Actions() {
		if a.GetVerb() == "patch" {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("%d writes", writes)
	}
	sa.Secrets = []corev1.ObjectReference{{Name: "s"}}
	if err := u.recordSecret(t.Context(), secret, sa); err != nil || !Generated(secret, sa) {
		t.Fatal(err)
	}
	secret.Labels[InvalidSinceLabel] = "2026-01-01"
	if err := u.recordSecret(t.Context(), secret, sa); err == nil || !strings.Contains(err.Error(), "the token in secret ns/s for service account ns/sa has been marked invalid.") {
		t.Errorf("a marked token: %v", err)
	}
	u.recordBound(t.Context(), "x", now, time.Time{})
	u.recordBound(t.Context(), "x", now, now.Add(time.Hour))
	u.recordBound(t.Context(), "x", now, now.Add(-time.Hour))
	for name, c := range map[string]struct {
		counter prometheus.Counter
		want    float64
	}{
		"legacy": {u.legacy, 4}, "manual": {u.manual, 3}, "auto": {u.auto, 1}, "invalid": {u.invalid, 1}, "valid": {u.valid, 1}, "stale": {u.stale, 1},
	} {
		if got := testutil.ToFloat64(c.counter); got != c.want {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
	var none *Usage
	none.recordBound(t.Context(), "x", now, now)
	if err := none.recordSecret(t.Context(), secret, sa); err != nil {
		t.Error(err)
	}
}

// TestCachedTokens checks the metrics of cached and newly verified tokens.
func TestCachedTokens(t *testing.T) {
	f := newFixture(t, nil)
	u, err := NewUsage(nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f.verifier.cfg.Usage = u
	token := f.request(t, authenticationv1.TokenRequestSpec{}).Status.Token
	for range 3 {
		if _, _, err := f.verifier.verify(token); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.verifier.verify(token[:len(token)-8] + "AAAAAAAA"); err == nil {
		t.Error("a forged token was accepted")
	}
	if _, ok, err := f.verifier.verify("not a token"); ok || err != nil {
		t.Errorf("foreign token: %v, %v", ok, err)
	}
	for _, c := range []struct {
		of   *prometheus.CounterVec
		what string
		want float64
	}{{u.requests, "hit", 2}, {u.requests, "miss", 2}, {u.fetches, "ok", 1}, {u.fetches, "error", 1}} {
		if got := testutil.ToFloat64(c.of.WithLabelValues(c.what)); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	if n := testutil.ToFloat64(u.verifying); n != 0 {
		t.Errorf("%v being verified", n)
	}
}
