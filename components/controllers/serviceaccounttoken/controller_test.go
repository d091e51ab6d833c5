package serviceaccounttoken

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

type signer struct{}

func (signer) Sign(sa *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
	return "token of " + sa.Name + " in " + s.Name, nil
}

func secret(name string, annotations map[string]string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "s", Annotations: annotations},
		Type:       corev1.SecretTypeServiceAccountToken, Data: data,
	}
}

// TestSync: Secrets of existing accounts get tokens, the others are deleted.
func TestSync(t *testing.T) {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}}
	of := func(name, uid string) map[string]string {
		m := map[string]string{corev1.ServiceAccountNameKey: name}
		if uid != "" {
			m[corev1.ServiceAccountUIDKey] = uid
		}
		return m
	}
	full := map[string][]byte{"token": []byte("kept"), "ca.crt": []byte("ca"), "namespace": []byte("ns")}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		token  string // of the Secret after the sync; empty: the Secret is deleted
		writes int
	}{
		"empty":                   {secret("s", of("a", ""), nil), "token of a in s", 1},
		"complete":                {secret("s", of("a", "u"), full), "kept", 0},
		"another CA":              {secret("s", of("a", "u"), map[string][]byte{"token": []byte("kept"), "namespace": []byte("ns"), "ca.crt": []byte("old")}), "kept", 1},
		"without service account": {secret("s", of("b", ""), nil), "", 1},
		"former service account":  {secret("s", of("a", "before"), full), "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := controltest.New(t, sa, c.secret)
			ctl, err := New(f.Env, signer{}, []byte("ca"))
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, ctl.Loop, "ns/s"); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); len(w) != c.writes {
				t.Errorf("writes: %q", w)
			}
			got, err := f.Kube.CoreV1().Secrets("ns").Get(context.Background(), "s", metav1.GetOptions{})
			if c.token == "" {
				if !apierrors.IsNotFound(err) {
					t.Errorf("the Secret exists: %v %v", got, err)
				}
				return
			}
			if err != nil || string(got.Data["token"]) != c.token || string(got.Data["ca.crt"]) != "ca" ||
				string(got.Data["namespace"]) != "ns" || got.Annotations[corev1.ServiceAccountUIDKey] != "u" {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
}

// TestUnlist: a deleted token Secret is removed from its account's list.
func TestUnlist(t *testing.T) {
	sa := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"},
		Secrets:    []corev1.ObjectReference{{Name: "a-token-1"}, {Name: "a-token-2"}, {Name: "mine"}},
	}
	f := controltest.New(t, sa, secret("a-token-2", map[string]string{corev1.ServiceAccountNameKey: "a"}, nil))
	ctl, err := New(f.Env, signer{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, ctl.Loop, deletedSecretPrefix+"ns/a/a-token-1"); err != nil {
		t.Fatal(err)
	}
	got, err := f.Kube.CoreV1().ServiceAccounts("ns").Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil || len(got.Secrets) != 2 || got.Secrets[0].Name != "a-token-2" || got.Secrets[1].Name != "mine" {
		t.Errorf("%v %v", got.Secrets, err)
	}
}
