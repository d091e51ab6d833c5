// Package testserver runs an API server with an etcd in the process of a test.
package testserver

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testetcd"
)

// Start runs an API server with cfg until the test ends, and returns when it is ready. It sets the log, and etcd unless
// cfg has one.
func Start(t testing.TB, cfg apiserver.Config) *apiserver.Server {
	t.Helper()
	if cfg.Etcd == nil {
		cfg.Etcd = testetcd.Client(t)
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := apiserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("API server: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("API server did not start: %v", err)
	}
	return s
}
