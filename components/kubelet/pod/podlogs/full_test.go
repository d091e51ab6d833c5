package podlogs

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testdisk"
)

// TestRotateOnFullDisk checks that a log is rotated although the disk has no space to compress old
// files, so that it does not grow beyond its limits, and that they are compressed later.
func TestRotateOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	path := filepath.Join(disk.Path, "0.log")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const size = 10 << 10
	r := Rotation{MaxSize: size, MaxFiles: 4, Now: func() time.Time { at = at.Add(time.Second); return at }}
	reopen := func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	fill := func() {
		t.Helper()
		disk.Free()
		put(t, path, rand.Text()+strings.Repeat("x", size)+rand.Text())
	}
	fill()
	if _, err := r.Rotate(path, reopen); err != nil {
		t.Fatal(err)
	}
	// Without an inode there can be no new file, so the runtime continues with the current one.
	fill()
	disk.Fill()
	if ok, err := r.Rotate(path, reopen); ok || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
		t.Errorf("rotating without an inode: %v, %v", ok, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() < size {
		t.Errorf("the current file is %v, %v", info, err)
	}
	for i := range 6 {
		fill()
		disk.Leave(testdisk.Space{Inodes: 10})
		ok, err := r.Rotate(path, reopen)
		// Later the oldest file is removed first, whose space is enough to compress another one.
		if failed := errors.Is(err, unix.ENOSPC) && strings.Contains(err.Error(), path); !ok || !failed && (err != nil || i == 0) {
			t.Fatalf("rotating: %v, %v", ok, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 0 {
			t.Errorf("the current file is %v, %v", info, err)
		}
		entries, err := os.ReadDir(disk.Path)
		if err != nil || len(entries) > r.MaxFiles {
			t.Errorf("the files are %v, %v", entries, err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), temp) {
				t.Errorf("incomplete file %s remains", e.Name())
			}
		}
	}
	fill()
	if ok, err := r.Rotate(path, reopen); !ok || err != nil {
		t.Errorf("rotating with free space: %v, %v", ok, err)
	}
	old, err := rotated(path)
	if err != nil || len(old) != r.MaxFiles-1 {
		t.Errorf("old files are %v, %v", old, err)
	}
	for _, name := range old[:len(old)-1] {
		if !strings.HasSuffix(name, gz) {
			t.Errorf("%s is not compressed", name)
		}
	}
}
