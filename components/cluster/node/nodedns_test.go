package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/internal/testing/testwait"
)

// TestNodeDNS checks that the resolver configuration of the node is copied, and copied again after a change.
func TestNodeDNS(t *testing.T) {
	dir := t.TempDir()
	source, target := filepath.Join(dir, "node.conf"), filepath.Join(dir, "dns", "resolv.conf")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(source+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(source+".new", source); err != nil {
			t.Fatal(err)
		}
	}
	isCopy := func(text string) func() bool {
		return func() bool {
			data, err := os.ReadFile(target)
			return err == nil && string(data) == text
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	d := newNodeDNS(kubeletconfig.DNS{ResolvConf: source}, target, slog.New(slog.DiscardHandler))
	go func() { stopped <- d.Run(ctx) }()
	for _, text := range []string{"nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"} {
		put(text)
		testwait.Until(t, "the file to be copied", isCopy(text))
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestNoNodeDNS checks that nothing is copied if the kubelet has no resolver configuration.
func TestNoNodeDNS(t *testing.T) {
	target := filepath.Join(t.TempDir(), "resolv.conf")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newNodeDNS(kubeletconfig.DNS{NoResolvConf: true}, target, slog.Default()).Run(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("%s exists: %v", target, err)
	}
}
