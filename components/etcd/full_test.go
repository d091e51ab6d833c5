package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk: a member that finds no space for its files says so, and where, and starts
// once there is some.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a small disk")
	}
	const segment = 64 * 1000 * 1000 >> 10 // KiB of the write-ahead log, which are taken at once
	for name, space := range map[string]int{"for nothing": 8, "for a part of the log": segment / 2, "for little but the log": segment + 8} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if err := unix.Mount("small", disk, "tmpfs", 0, fmt.Sprintf("size=%dk", space)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(disk, 0); err != nil {
					t.Error(err)
				}
			})
			cfg := aloneAnywhere(filepath.Join(disk, "data"))
			for range 2 { // what the first has left is no hindrance to know it by
				// It leaves files open, so that it is another process.
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), "ETCD_TEST_FULL="+cfg.DataDir)
				out, err := cmd.CombinedOutput()
				if text := string(out); err == nil || !strings.Contains(text, "is full: make space there") || !strings.Contains(text, cfg.DataDir) ||
					!strings.Contains(text, "no space left on device") || strings.Contains(text, "goroutine") {
					t.Errorf("%v: %s", err, text)
				}
			}
			if err := unix.Mount("small", disk, "tmpfs", unix.MS_REMOUNT, "size=256m"); err != nil {
				t.Fatal(err)
			}
			s, stop := start(t, cfg)
			defer stop()
			if _, err := s.Client().Put(context.Background(), "k", "v"); err != nil {
				t.Error(err)
			}
		})
	}
}

// startFull is the other process of TestFullDisk.
func startFull(dir string) int {
	cfg := aloneAnywhere(dir)
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(cfg)
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-s.Ready()
			cancel()
		}()
		err = s.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
