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

// TestFullDisk checks that a member without disk space for its files reports that with the path,
// and starts once there is space.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a small disk")
	}
	const segment = 64 * 1000 * 1000 >> 10 // KiB of a write-ahead log segment, preallocated
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
			for range 2 { // files left by the first attempt do not hide the cause
				// A separate process, because it leaves files open.
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), "ETCD_TEST_FULL="+cfg.DataDir)
				out, err := cmd.CombinedOutput()
				if text := string(out); err == nil || !strings.Contains(text, "is full: free space") || !strings.Contains(text, cfg.DataDir) ||
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

// startFull runs in the child process of TestFullDisk.
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
