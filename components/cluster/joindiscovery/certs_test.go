package joindiscovery

import (
	"bytes"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestCerts(t *testing.T) {
	key, err := ParseCertificateKey(NewCertificateKey().String())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range SharedFiles() {
		files[name] = []byte("content of " + name)
	}
	owner := CertsToken(time.Now()).Secret()
	owner.UID = types.UID("u")
	secret, err := SealCerts(files, key, owner)
	if err != nil {
		t.Fatal(err)
	}
	if secret.Data["etcd-ca.key"] == nil || bytes.Contains(secret.Data["etcd-ca.key"], []byte("content")) || secret.OwnerReferences[0].Name != owner.Name {
		t.Errorf("%+v", secret)
	}
	again, err := OpenCerts(secret, key)
	if err != nil || len(again) != len(files) {
		t.Fatal(again, err)
	}
	for name, data := range files {
		if !bytes.Equal(again[name], data) {
			t.Errorf("%s is %q", name, again[name])
		}
	}
	if _, err := OpenCerts(secret, NewCertificateKey()); err == nil {
		t.Error("opened with another key")
	}
	secret.Data["ca.key"] = secret.Data["ca.key"][:5]
	if _, err := OpenCerts(secret, key); err == nil {
		t.Error("truncated data accepted")
	}
	delete(secret.Data, "ca.key")
	if _, err := OpenCerts(secret, key); err == nil {
		t.Error("no error without the CA key")
	}
	for _, text := range []string{"", "ab", key.String() + "00", "x" + key.String()[1:]} {
		if _, err := ParseCertificateKey(text); err == nil {
			t.Errorf("%q accepted as a key", text)
		}
	}
}

// FuzzOpenCerts: arbitrary contents of the Secret are refused without a panic.
func FuzzOpenCerts(f *testing.F) {
	f.Add([]byte("short"), []byte("a nonce and a little more"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		secret := CertsToken(time.Now()).Secret()
		for i, name := range SharedFiles() {
			secret.Data[secretKey(name)] = [][]byte{a, b}[i%2]
		}
		if _, err := OpenCerts(secret, NewCertificateKey()); err == nil {
			t.Error("opened")
		}
	})
}
