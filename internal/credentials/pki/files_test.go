package pki

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFiles checks that a changed certificate is loaded, that the previous one is returned while
// the two files do not match, and that an error is returned only until the first load.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := newCA("test", key)
	if err != nil {
		t.Fatal(err)
	}
	var failures []error
	f := &Files{
		Context: "the test's", CertFile: filepath.Join(dir, "c.crt"), KeyFile: filepath.Join(dir, "c.key"),
		OnError: func(err error) { failures = append(failures, err) },
	}
	if _, err := f.Certificate(); err == nil || !strings.HasPrefix(err.Error(), "the test's: ") || len(failures) != 0 {
		t.Errorf("without files: %v, OnError calls %v", err, failures)
	}
	age := time.Now().Add(-time.Hour)
	write := func(name string, withKey bool) {
		t.Helper()
		pair, err := ca.NewPair(Server(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.CertFile, pair.CertPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		if withKey {
			if err := os.WriteFile(f.KeyFile, pair.KeyPEM, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		age = age.Add(time.Minute) // file timestamps may be coarse
		if err := os.Chtimes(f.CertFile, age, age); err != nil {
			t.Fatal(err)
		}
	}
	has := func(want string, failed int) {
		t.Helper()
		pair, err := f.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil || leaf.Subject.CommonName != want || len(failures) != failed {
			t.Errorf("the certificate of %q after %d failures, want %q after %d", leaf.Subject.CommonName, len(failures), want, failed)
		}
	}
	write("first", true)
	has("first", 0)
	write("second", false)
	has("first", 1)
	write("third", true)
	has("third", 1)
	f.CheckInterval = time.Hour
	write("fourth", true)
	has("third", 1)
	f.CheckInterval = 0
	has("fourth", 1)
}
