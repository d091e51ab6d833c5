package configfile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen, done := make(chan string), make(chan error, 1)
	last := ""
	go func() {
		done <- Follow(ctx, path, slog.Default(), func() {
			if data, _ := os.ReadFile(path); len(data) > 0 && string(data) != last {
				last = string(data)
				seen <- last
			}
		})
	}()
	if got := <-seen; got != "one" {
		t.Error(got)
	}
	if err := os.WriteFile(path+".new", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got != "two" {
		t.Error(got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
