package encryption

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestValidate checks that Validate accepts and rejects the same files as Load, and that it contacts no key management service.
func TestValidate(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"
	for name, c := range map[string]struct{ text, want string }{
		"key":        {head + "  - secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}\n  - identity: {}\n", ""},
		"short key":  {head + "  - secretbox: {keys: [{name: a, secret: MDEy}]}\n", "secret is not of the expected length"},
		"no keys":    {head + "  - aescbc: {}\n", "at least one keys is required"},
		"empty":      {"", "Object 'Kind' is missing"},
		"other kind": {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n", "expected EncryptionConfiguration"},
	} {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, loadErr := Load(ctx, Config{Path: path})
		cancel()
		err := Validate(Config{Path: path})
		if (err == nil) != (loadErr == nil) || (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Validate: %v, Load: %v, want %q", name, err, loadErr, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "kms.yaml")
	if err := os.WriteFile(path, []byte(head+"  - kms: {apiVersion: v2, name: a, endpoint: 'unix:///missing.sock', timeout: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Validate(Config{Path: path}); err != nil {
		t.Errorf("KMS: %v", err)
	}
	if err := Validate(Config{Path: path + ".missing"}); err == nil {
		t.Error("a missing file is accepted")
	}
}
