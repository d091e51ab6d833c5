package encryption

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

var (
	secrets    = schema.GroupResource{Resource: "secrets"}
	configMaps = schema.GroupResource{Resource: "configmaps"}
)

func TestEnsureAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "encryption.yaml")
	if err := Ensure(path); err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(path)
	if info, _ := os.Stat(path); info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := Ensure(path); err != nil {
		t.Fatal(err)
	}
	if second, _ := os.ReadFile(path); !bytes.Equal(first, second) {
		t.Error("the key was replaced")
	}

	all, err := Load(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if !all.Encrypts(secrets) || all.Encrypts(configMaps) {
		t.Error("encrypts the wrong resources")
	}
	at := value.DefaultContext("/registry/secrets/default/a")
	plain := []byte("k8s\x00 secret")
	stored, err := all.For(secrets).TransformToStorage(t.Context(), plain, at)
	if err != nil || !bytes.HasPrefix(stored, []byte("k8s:enc:secretbox:v1:key1:")) || bytes.Contains(stored, []byte("secret\x00")) {
		t.Fatalf("stored %q, %v", stored, err)
	}
	got, stale, err := all.For(secrets).TransformFromStorage(t.Context(), stored, at)
	if err != nil || stale || !bytes.Equal(got, plain) {
		t.Errorf("read %q, stale %v, %v", got, stale, err)
	}
	// Values that were stored before encryption was enabled are readable and reported as stale.
	got, stale, err = all.For(secrets).TransformFromStorage(t.Context(), plain, at)
	if err != nil || !stale || !bytes.Equal(got, plain) {
		t.Errorf("read %q, stale %v, %v", got, stale, err)
	}
	for _, tr := range []*Transformers{nil, all} {
		if tr.For(configMaps) != nil {
			t.Error("an unencrypted resource has a transformer")
		}
	}
}

func TestLoadErrors(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"
	for name, tc := range map[string]struct{ text, err string }{
		"empty":     {"", "is empty"},
		"short key": {head + "resources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: a, secret: YWJj}]}}]}]", "got 3, expected one of [32]"},
		"unknown":   {head + "resources: [{resources: [secrets], providers: [{rot13: {}}]}]", `unknown field "resources[0].providers[0].rot13"`},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(t.Context(), Config{Path: path}); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %s", name, err, tc.err)
		}
	}
}
