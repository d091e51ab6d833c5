package shutdown

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
	"hyperkube/internal/testing/testwait"
)

// TestStopJob suspends pods twice, the second time while the first is in progress, and then stops the kubelet.
func TestStopJob(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	r := &recorder{notified: make(chan struct{}, 1)}
	stopped := make(chan struct{})
	m := New(Config{
		StopSocket: socket, State: filepath.Join(dir, "state"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Pods: func() []*v1.Pod { return []*v1.Pod{pod("vital", podutil.SystemCritical), pod("usual", 0)} },
		Suspend: func(p *v1.Pod, _ int64) <-chan struct{} {
			r.add(p.Name)
			return stopped
		},
		Changed: func() { r.add("changed") },
		Event:   func(_, message string) { r.add(message) },
	})
	if err := Suspend(t.Context(), socket); !errors.Is(err, ErrNoKubelet) {
		t.Fatalf("without a kubelet: %v", err)
	}
	// A killed kubelet has left a socket behind.
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.RunStopJob(ctx) }()
	if err := m.Run(ctx); err != nil { // does not watch logind
		t.Fatal(err)
	}
	testwait.Until(t, "the socket", func() bool {
		info, err := os.Stat(socket)
		return err == nil && info.Mode() == os.ModeSocket|0o600
	})
	results := make(chan error, 2)
	for range cap(results) {
		go func() { results <- Suspend(t.Context(), socket) }()
	}
	r.await(t, "changed", "Shutdown manager detected shutdown event", "usual")
	if !m.Down() {
		t.Error("pods are admitted during the shutdown")
	}
	close(stopped)
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	r.await(t, "changed", "Shutdown manager detected shutdown event", "usual", "vital")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Suspend(t.Context(), socket); !errors.Is(err, ErrNoKubelet) {
		t.Errorf("after the kubelet has stopped: %v", err)
	}
}
