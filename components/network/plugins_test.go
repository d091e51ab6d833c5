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

// TestFollowPlugins: a configuration is seen as soon as it comes or goes, even if
// its folder was not there.
func TestFollowPlugins(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "cni", "net.d")
	seen := make(chan struct{}, 100)
	n := &Network{changed: make(chan struct{}, 1), cfg: Config{
		PluginConf: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), PluginsChanged: func() { seen <- struct{}{} },
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.followPlugins(ctx) }()
	defer func() { cancel(); <-done }()
	await := func(what string, want bool) {
		t.Helper()
		end := time.After(time.Minute)
		for n.plugins() != want || !drained(seen) {
			select {
			case <-seen:
			case <-end:
				t.Fatalf("%s was not seen", what)
			}
		}
	}
	// A change from before it watched would not be told of: it is made again.
	file := filepath.Join(dir, "10-net.conflist")
	for told := false; !told; {
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
			told = true
		case <-time.After(time.Second):
		}
	}
	if !n.plugins() {
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
