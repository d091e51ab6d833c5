// Package testapi runs an API server with an etcd in the process of a test, for tests of packages that write
// objects.
package testapi

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/components/cluster/applyset"
	"hyperkube/internal/testing/testetcd"
)

// Server is a running API server. It serves built-in kinds and custom resources, without authorization and
// admission.
type Server struct {
	REST    *rest.Config
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  applyset.Mapper
}

// Start runs an API server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := apiserver.New(apiserver.Config{
		Etcd: testetcd.Client(t),
		Log:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
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
		done <- nil
		t.Fatalf("API server did not start: %v", err)
	}
	cfg := s.ClientConfig("admin", "system:masters")
	cfg.QPS = -1
	return &Server{REST: cfg, Kube: kubernetes.NewForConfigOrDie(cfg), Dynamic: dynamic.NewForConfigOrDie(cfg), Mapper: s.Registry()}
}

// Client returns a client of sets whose members have the field manager "hyperkube".
func (s *Server) Client() *applyset.Client {
	return &applyset.Client{Dynamic: s.Dynamic, Mapper: s.Mapper, FieldManager: "hyperkube"}
}
