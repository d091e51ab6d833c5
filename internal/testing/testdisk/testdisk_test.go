package testdisk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFill checks that a write to a full disk is incomplete and fails, and succeeds after Free.
func TestFill(t *testing.T) {
	disk := New(t)
	file := filepath.Join(disk.Path, "file")
	disk.Leave(Space{Blocks: 1, Inodes: 1})
	if err := os.WriteFile(file, make([]byte, 8<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing two blocks with one free: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 4<<10 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if err := os.Mkdir(file+".d", 0o700); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("creating a directory without a free inode: %v", err)
	}
	disk.Free()
	disk.Fill()
	if err := os.WriteFile(file+"2", nil, 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("creating a file: %v", err)
	}
	disk.Free()
	if err := os.WriteFile(file+"2", make([]byte, 1<<20), 0o600); err != nil {
		t.Error(err)
	}
}

// TestFailEach checks that each allocation of an operation fails once.
func TestFailEach(t *testing.T) {
	disk := New(t)
	var reached []int // the steps at which attempts failed
	disk.FailEach(func(attempt int) (err error) {
		step := 0
		defer func() {
			if err != nil {
				reached = append(reached, step)
			}
		}()
		dir := filepath.Join(disk.Path, strconv.Itoa(attempt))
		for _, do := range []func() error{
			func() error { return os.Mkdir(dir, 0o700) },
			func() error { return os.WriteFile(filepath.Join(dir, "1"), []byte("x"), 0o600) },
			func() error { return os.WriteFile(filepath.Join(dir, "2"), make([]byte, 5<<10), 0o600) },
		} {
			if err := do(); err != nil {
				return err
			}
			step++
		}
		return nil
	}, nil)
	// Three inodes, then the blocks: one of the first file, two of the second.
	if want := []int{0, 1, 2, 1, 2, 2}; !slices.Equal(reached, want) {
		t.Errorf("attempts failed at %v, want %v", reached, want)
	}
}
