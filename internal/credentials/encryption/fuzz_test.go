package encryption

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// FuzzConfiguration loads files with arbitrary content, and checks that values encrypted with the
// providers of a configuration can be decrypted.
func FuzzConfiguration(f *testing.F) {
	f.Add(strings.ReplaceAll(template, "%s", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	const head = "{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: ["
	f.Add(head + `{resources: ["*.*"], providers: [{aescbc: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NQ==}]}}]}]}`)
	f.Add(head + `{resources: [secrets, configmaps.], providers: [{aesgcm: {keys: [{name: a, secret: AA==}]}}]}]}`)
	f.Add(head + `{resources: [secrets], providers: [{}]}, {}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "kms") {
			return // would connect to a service
		}
		file := filepath.Join(t.TempDir(), "encryption.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := Load(t.Context(), Config{Path: file})
		if err != nil {
			return
		}
		ctx, place := context.Background(), value.DefaultContext("/registry/secrets/a/b")
		with := all.For(schema.GroupResource{Resource: "secrets"})
		if with == nil {
			return
		}
		stored, err := with.TransformToStorage(ctx, []byte("secret"), place)
		if err != nil {
			return
		}
		if plain, _, err := with.TransformFromStorage(ctx, stored, place); err != nil || !bytes.Equal(plain, []byte("secret")) {
			t.Errorf("%q is read as %q, %v", stored, plain, err)
		}
	})
}
