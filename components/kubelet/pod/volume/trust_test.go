package volume

import (
	"context"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type fakeTrust []*certificatesv1.ClusterTrustBundle

func (f fakeTrust) Bundles(context.Context) ([]*certificatesv1.ClusterTrustBundle, error) {
	return f, nil
}

func TestTrust(t *testing.T) {
	block := func(s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
	}
	bundle := func(name, signer, label, text string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		}
	}
	trust := fakeTrust{
		bundle("a", "example.com/s", "1", "words\n"+block("one")+block("two")), bundle("b", "example.com/s", "2", block("two")+block("three")), bundle("c", "", "", block("four")),
	}
	name, none, signer, other, yes := "c", "none", "example.com/s", "example.com/other", true
	for what, tc := range map[string]struct {
		p     v1.ClusterTrustBundleProjection
		count int
		fails string
	}{
		"by name":                {p: v1.ClusterTrustBundleProjection{Name: &name}, count: 1},
		"unknown name":           {p: v1.ClusterTrustBundleProjection{Name: &none}, fails: "not found"},
		"unknown name, optional": {p: v1.ClusterTrustBundleProjection{Name: &none, Optional: &yes}},
		"by signer":              {p: v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: &metav1.LabelSelector{}}, count: 3},
		"by label":               {p: v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"l": "2"}}}, count: 2},
		"nothing selected":       {p: v1.ClusterTrustBundleProjection{SignerName: &signer}, fails: "matched zero"},
		"no signer, optional":    {p: v1.ClusterTrustBundleProjection{SignerName: &other, LabelSelector: &metav1.LabelSelector{}, Optional: &yes}},
	} {
		t.Run(what, func(t *testing.T) {
			tc.p.Path = "ca.pem"
			payload := Payload{}
			err := addTrustAnchors(t.Context(), trust, payload, &v1.Pod{}, &tc.p, 0o644)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(string(payload["ca.pem"].Data), "BEGIN CERTIFICATE"); got != tc.count {
				t.Errorf("%d anchors", got)
			}
		})
	}
}

// TestTrustOwned checks that trust anchors are accessible to the user or the group of the pod, like
// tokens.
func TestTrustOwned(t *testing.T) {
	trust := fakeTrust{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	name, user, group := "a", int64(1000), int64(2000)
	for what, c := range map[string]struct {
		security v1.PodSecurityContext
		user     *int64
		mode     os.FileMode
	}{
		"no owner":         {v1.PodSecurityContext{}, nil, 0o644},
		"owned by a user":  {v1.PodSecurityContext{RunAsUser: &user}, &user, 0o600},
		"owned by a group": {v1.PodSecurityContext{FSGroup: &group}, nil, 0o600},
	} {
		pod, payload := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &c.security, Containers: []v1.Container{{}}}}, Payload{}
		if err := addTrustAnchors(t.Context(), trust, payload, pod, &v1.ClusterTrustBundleProjection{Name: &name, Path: "p"}, 0o644); err != nil {
			t.Fatal(err)
		}
		if f := payload["p"]; f.Mode != c.mode || (f.User == nil) != (c.user == nil) || f.User != nil && *f.User != *c.user {
			t.Errorf("%s: %+v", what, f)
		}
	}
}
