package bootstraptokens

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func token(id, expiration string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: namePrefix + id},
		Type:       corev1.SecretTypeBootstrapToken,
		Data:       map[string][]byte{"token-id": []byte(id), "token-secret": []byte("tokenSecret"), "usage-bootstrap-signing": []byte("true")},
	}
	if expiration != "" {
		s.Data["expiration"] = []byte(expiration)
	}
	return s
}

func at(d time.Duration) string { return controltest.Now.Add(d).Format(time.RFC3339) }

func TestClean(t *testing.T) {
	plain := token("plain", at(-time.Hour))
	plain.Type = corev1.SecretTypeOpaque
	for _, tc := range []struct {
		name   string
		secret *corev1.Secret
		gone   bool
	}{
		{"no expiration", token("a", ""), false},
		{"valid", token("a", at(time.Hour)), false},
		{"expired", token("a", at(-time.Second)), true},
		{"invalid expiration", token("a", "tomorrow"), true},
		{"not a token", plain, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, tc.secret)
			c, err := NewCleaner(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, tc.secret.Name); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); slices.Contains(w, "delete secrets "+tc.secret.Name) != tc.gone {
				t.Errorf("%v", w)
			}
		})
	}
}

func TestSign(t *testing.T) {
	unused := token("unused", "")
	delete(unused.Data, "usage-bootstrap-signing")
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: infoName},
		Data: map[string]string{kubeconfigKey: "payload", signaturePrefix + "old": "x"}}
	f := controltest.New(t, info, token("valid", at(time.Hour)), token("late", at(-time.Hour)), unused)
	s, err := NewSigner(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, s.Loop, infoName); err != nil {
		t.Fatal(err)
	}
	got, err := f.Kube.CoreV1().ConfigMaps("kube-public").Get(t.Context(), infoName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := Sign("payload", "valid", "tokenSecret")
	if len(got.Data) != 2 || got.Data[kubeconfigKey] != "payload" || got.Data[signaturePrefix+"valid"] != want {
		t.Errorf("%v", got.Data)
	}
	f.Writes()
	f.Cache(got)
	if err := controltest.Sync(t, s.Loop, infoName); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("repeated writes: %v", w)
	}
}

// TestSignature compares the signature with an HMAC computed by openssl.
func TestSignature(t *testing.T) {
	got, err := Sign("payload", "tokenID", "tokenSecret")
	if want := "eyJhbGciOiJIUzI1NiIsImtpZCI6InRva2VuSUQifQ..QAvK9DAjF0hSyASEkH1MOTB5rJMmbWEY9j-z1NSYILE"; err != nil || got != want {
		t.Errorf("got %s %v, want %s", got, err, want)
	}
}
