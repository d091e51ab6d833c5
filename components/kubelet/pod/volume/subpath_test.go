package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSubPathRace checks that SubPath never mounts a path outside the volume while a container of the pod
// replaces a directory of the volume with a symbolic link, and vice versa. Calls may fail, because the
// path may be outside at the moment of the call.
func TestSubPathRace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for name, test := range map[string]struct {
		sub string // path within the volume
		// secret and public are the marker files below the mounted path, outside and inside of the volume.
		secret, public string
	}{
		"last element":    {"swapped", "target/secret", "target/public"},
		"parent":          {"swapped/target", "secret", "public"},
		"missing element": {"swapped/missing", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, pod, volume, outside := &Set{}, t.TempDir(), t.TempDir(), t.TempDir()
			t.Cleanup(func() { _ = unmountBelow(pod) })
			writeFile(t, filepath.Join(outside, "target", "secret"))
			writeFile(t, filepath.Join(volume, "swapped", "target", "public"))
			if err := os.Symlink(outside, filepath.Join(volume, "link")); err != nil {
				t.Fatal(err)
			}
			stop, stopped := make(chan struct{}), make(chan error, 1)
			go func() {
				stopped <- exchangeUntil(stop, filepath.Join(volume, "swapped"), filepath.Join(volume, "link"))
			}()
			mounted, refused := 0, 0
			// The race is won only if some calls see the directory and others the link.
			for range 2000 {
				target, err := set.SubPath(pod, "v", volume, test.sub, "c", 0)
				if err != nil {
					refused++
					continue
				}
				mounted++
				if test.secret == "" {
					continue
				}
				if _, err := os.Stat(filepath.Join(target, test.secret)); err == nil {
					t.Fatal("the subPath is outside of the volume")
				}
				if _, err := os.Stat(filepath.Join(target, test.public)); err != nil {
					t.Fatalf("the subPath is not the directory of the volume: %v", err)
				}
			}
			close(stop)
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			if mounted == 0 || refused == 0 {
				t.Errorf("%d calls succeeded and %d failed: there was no race", mounted, refused)
			}
			if _, err := os.Lstat(filepath.Join(outside, "missing")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("SubPath created a directory outside of the volume: %v", err)
			}
		})
	}
}

// exchangeUntil exchanges two paths until stop is closed.
func exchangeUntil(stop <-chan struct{}, a, b string) error {
	for {
		select {
		case <-stop:
			return nil
		default:
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				return err
			}
		}
	}
}

// writeFile creates a file and its directories.
func writeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}
