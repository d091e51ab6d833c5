package encryption

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kms/pkg/service"

	"hyperkube/internal/testing/testwait"
)

// keeper is a fake key management service. It implements service.Service.
type keeper struct {
	mu  sync.Mutex
	key string
	// encrypted and decrypted count the requests.
	encrypted, decrypted int
}

func turned(data []byte) []byte {
	out := slices.Clone(data)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

func (k *keeper) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.encrypted++
	return &service.EncryptResponse{Ciphertext: turned(data), KeyID: k.key}, nil
}

func (k *keeper) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.decrypted++
	return turned(req.Ciphertext), nil
}

func (k *keeper) Status(context.Context) (*service.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.key}, nil
}

// serve serves k on a unix socket and returns its endpoint.
func (k *keeper) serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	t.Cleanup(k.serveAt(socket))
	return "unix://" + socket
}

// serveAt serves k on a unix socket until the returned function is called.
func (k *keeper) serveAt(socket string) (stop func()) {
	s := service.NewGRPCService(socket, time.Minute, k)
	served := make(chan error, 1)
	go func() { served <- s.ListenAndServe() }()
	return func() { s.Close(); <-served }
}

func write(t *testing.T, path, text string) {
	t.Helper()
	next := path + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

func by(resource, providers string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [" + resource + "], providers: [" + providers + "]}]\n"
}

// TestKeyService encrypts with a KMS v2 provider, and then switches to another provider without a
// restart.
func TestKeyService(t *testing.T) {
	k := &keeper{key: "one"}
	endpoint := k.serve(t)
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	kms := fmt.Sprintf("{kms: {apiVersion: v2, name: vault, endpoint: %q, timeout: 30s}}", endpoint)
	write(t, path, by("secrets", kms+", {identity: {}}"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all, err := Load(ctx, Config{Path: path, Reload: true, ServerID: "me"})
	if err != nil {
		t.Fatal(err)
	}
	checks := all.Checks()
	if len(checks) != 1 || checks[0].Name != "kms-providers" {
		t.Fatalf("checks %v", checks)
	}
	testwait.Until(t, "the service is healthy", func() bool { return checks[0].Check(ctx) == nil })

	with := all.For(secrets)
	at, plain := value.DefaultContext("/registry/secrets/default/a"), []byte("k8s\x00 secret")
	stored, err := with.TransformToStorage(ctx, plain, at)
	if err != nil || !bytes.HasPrefix(stored, []byte("k8s:enc:kms:v2:vault:")) || bytes.Contains(stored, []byte("secret")) {
		t.Fatalf("stored %q, %v", stored, err)
	}
	before := k.encrypted
	for range 100 {
		if _, err := with.TransformToStorage(ctx, plain, at); err != nil {
			t.Fatal(err)
		}
		if got, stale, err := with.TransformFromStorage(ctx, stored, at); err != nil || stale || !bytes.Equal(got, plain) {
			t.Fatalf("read %q, stale %v, %v", got, stale, err)
		}
	}
	if k.encrypted != before || k.decrypted > 2 {
		t.Errorf("%d encrypt and %d decrypt requests", k.encrypted-before, k.decrypted)
	}

	ended := make(chan error, 1)
	go func() { ended <- all.Run(ctx) }()
	write(t, path, "{")
	local := "{secretbox: {keys: [{name: k, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}}"
	write(t, path, by("secrets, configmaps", local+", "+kms+", {identity: {}}"))
	testwait.Until(t, "the new file is used", func() bool {
		got, err := with.TransformToStorage(ctx, plain, at)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.HasPrefix(got, []byte("k8s:enc:secretbox:v1:k:"))
	})
	if got, stale, err := with.TransformFromStorage(ctx, stored, at); err != nil || !stale || !bytes.Equal(got, plain) {
		t.Errorf("read %q, stale %v, %v", got, stale, err)
	}
	if got, err := all.For(configMaps).TransformToStorage(ctx, plain, at); err != nil || bytes.Contains(got, []byte("secret\x00")) || !all.Encrypts(configMaps) {
		t.Errorf("stored %q, %v", got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestKeyServiceWithoutReload uses a KMS provider without reload: resources that the configuration
// does not name are not encrypted.
func TestKeyServiceWithoutReload(t *testing.T) {
	k := &keeper{key: "one"}
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	write(t, path, by("secrets", fmt.Sprintf("{kms: {apiVersion: v2, name: vault, endpoint: %q, timeout: 30s}}", k.serve(t))))
	all, err := Load(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if c := all.Checks(); len(c) != 1 || c[0].Name != "kms-providers" || all.For(configMaps) != nil {
		t.Errorf("checks %v", c)
	}
	write(t, path, by("secrets", "{kms: {apiVersion: v1, name: vault, endpoint: unix:///x}}"))
	if _, err := Load(t.Context(), Config{Path: path}); err == nil {
		t.Error("services of version 1 are off by default")
	}
}

// TestKeyServiceRestart stops the KMS and restarts it with another key: the current key remains in
// use in between, the health check reports the failure, and then the new key is used.
func TestKeyServiceRestart(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "kms") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	k, socket := &keeper{key: "one"}, filepath.Join(dir, "s")
	stop := k.serveAt(socket)
	path := filepath.Join(dir, "encryption.yaml")
	write(t, path, by("secrets", fmt.Sprintf("{kms: {apiVersion: v2, name: away, endpoint: %q, timeout: 3s}}", "unix://"+socket)))
	all, err := Load(t.Context(), Config{Path: path, ServerID: "me"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, check, with := t.Context(), all.Checks()[0], all.For(secrets)
	testwait.Until(t, "the service is healthy", func() bool { return check.Check(ctx) == nil })
	at, plain := value.DefaultContext("/registry/secrets/default/a"), []byte("k8s\x00 secret")
	first, err := with.TransformToStorage(ctx, plain, at)
	if err != nil {
		t.Fatal(err)
	}

	stop()
	testwait.Until(t, "the health check fails", func() bool { return check.Check(ctx) != nil })
	if _, err := with.TransformToStorage(ctx, plain, at); err != nil {
		t.Errorf("encryption fails while the service is down: %v", err)
	}
	if got, stale, err := with.TransformFromStorage(ctx, first, at); err != nil || stale || !bytes.Equal(got, plain) {
		t.Errorf("read %q while the service is down, stale %v, %v", got, stale, err)
	}

	k.mu.Lock()
	k.key = "two"
	k.mu.Unlock()
	defer k.serveAt(socket)()
	testwait.Until(t, "the service uses the new key", func() bool {
		if check.Check(ctx) != nil {
			return false
		}
		_, stale, err := with.TransformFromStorage(ctx, first, at)
		return err == nil && stale
	})
	second, err := with.TransformToStorage(ctx, plain, at)
	if err != nil {
		t.Fatal(err)
	}
	if got, stale, err := with.TransformFromStorage(ctx, second, at); err != nil || stale || !bytes.Equal(got, plain) {
		t.Errorf("read %q, stale %v, %v", got, stale, err)
	}
}
