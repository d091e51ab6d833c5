package network

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFollowPlugins checks that the creation and removal of a configuration is noticed immediately,
// even if the directory did not exist.
func TestFollowPlugins(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "cni", "net.d")
	seen := make(chan struct{}, 100)
	n := &Network{changed: make(chan struct{}, 1), cfg: Config{
		CNIConfDir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), OnCNIConfChange: func() { seen <- struct{}{} },
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.watchCNIConf(ctx) }()
	defer func() { cancel(); <-done }()
	await := func(what string, want bool) {
		t.Helper()
		end := time.After(time.Minute)
		for n.usesCNIPlugin() != want || !drained(seen) {
			select {
			case <-seen:
			case <-end:
				t.Fatalf("%s was not seen", what)
			}
		}
	}
	// Changes before the watch starts are missed, so the file is created repeatedly.
	file := filepath.Join(dir, "10-net.conflist")
	for seenOnce := false; !seenOnce; {
		if err := os.RemoveAll(filepath.Join(root, "cni")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(`{"name": "x"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case <-seen:
			seenOnce = true
		case <-time.After(time.Second):
		}
	}
	if !n.usesCNIPlugin() {
		t.Fatal("the configuration is not known")
	}
	drained(seen)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	await("that it went", false)
	if err := os.WriteFile(file, []byte(`{"name": "y"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	await("that it came", true)
}

// drained empties c and returns true.
func drained(c chan struct{}) bool {
	for {
		select {
		case <-c:
		default:
			return true
		}
	}
}
