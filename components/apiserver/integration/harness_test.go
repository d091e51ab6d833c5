package integration

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"

	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/internal/testing/testetcd"
)

// startServer runs an API server with cfg, after setting missing fields such as etcd and the log.
func startServer(t testing.TB, cfg apiserver.Config) *apiserver.Server {
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
			t.Errorf("server ended with %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("server did not start: %v", err)
	}
	return s
}

func admin(s *apiserver.Server) *clientrest.Config { return s.ClientConfig("admin", "system:masters") }

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
