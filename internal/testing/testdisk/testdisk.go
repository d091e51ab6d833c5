// Package testdisk provides small file systems for tests of full and slow disks. Only root can mount
// them: tests of other users are skipped. Tests that use it run in their own mount namespace, see
// package testisolate.
package testdisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// capacity is the number of blocks and inodes of an empty Disk.
var capacity = Space{Blocks: 16 << 10, Inodes: 16 << 10}

// Space is an amount of space on a Disk, in blocks and inodes.
type Space struct {
	// Blocks are blocks of 4 KiB. A file needs at least one, unless it is empty.
	Blocks int
	// Inodes are the numbers of files, directories and symbolic links.
	Inodes int
}

// Disk is a file system in memory with 64 MiB and 16,384 inodes. Writes to a full disk fail like
// those to a disk of a machine: a part is written, then ENOSPC is returned.
type Disk struct {
	testing.TB
	// Path is an empty directory on the disk, or the mount point after Mount.
	Path string

	mountPoint string
}

// New mounts a disk. It is unmounted at the end of the test, which fails if files are still open. The test is skipped
// for users other than root.
func New(t testing.TB) *Disk {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := Mount(t, dir)
	// The kernel cannot limit a disk to nothing, so there is always a file outside of Path.
	d.Path = filepath.Join(dir, "files")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "used"), []byte("x"), 0o600), os.Mkdir(d.Path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return d
}

// Mount is like New, but mounts the disk at the existing directory dir, which becomes Path. Leave
// and Fill need at least one file with content on the disk.
func Mount(t testing.TB, dir string) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	if err := unix.Mount("testdisk", dir, "tmpfs", 0, capacity.options()); err != nil {
		t.Fatalf("mounting a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting a small disk: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return &Disk{TB: t, Path: dir, mountPoint: dir}
}

// options returns the mount options of a tmpfs of this size.
func (s Space) options() string {
	return fmt.Sprintf("mode=755,size=%dk,nr_inodes=%d", 4*s.Blocks, s.Inodes)
}

// Used returns the space that files occupy.
func (d *Disk) Used() Space {
	d.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.mountPoint, &st); err != nil {
		d.Fatal(err)
	}
	return Space{Blocks: int(st.Blocks - st.Bfree), Inodes: int(st.Files - st.Ffree)}
}

// Leave fills the disk so that only the space free remains, by reducing the size of the disk.
func (d *Disk) Leave(free Space) {
	d.Helper()
	used := d.Used()
	if used.Blocks == 0 && free.Blocks == 0 {
		d.Fatal("a disk without content cannot be filled")
	}
	// A size of 0 would mean no limit.
	total := Space{Blocks: max(1, used.Blocks+free.Blocks), Inodes: max(1, used.Inodes+free.Inodes)}
	if err := unix.Mount("testdisk", d.mountPoint, "tmpfs", unix.MS_REMOUNT, total.options()); err != nil {
		d.Fatalf("filling the disk: %v", err)
	}
}

// Fill leaves no free space on the disk: further writes fail with ENOSPC until Free is called.
func (d *Disk) Fill() {
	d.Helper()
	d.Leave(Space{})
}

// Free reverts Leave and Fill: the disk has its original size again.
func (d *Disk) Free() {
	d.Helper()
	if err := unix.Mount("testdisk", d.mountPoint, "tmpfs", unix.MS_REMOUNT, capacity.options()); err != nil {
		d.Fatalf("freeing disk space: %v", err)
	}
}

// FailEach tests that op handles a full disk at every point: it calls op with no free inode, with
// one, with two, and so on, until op succeeds, and then the same with free blocks. op gets the
// number of the attempt, from 0, and must need new space after a success. After each failure
// FailEach calls failed with the error, while the disk is still full; failed may be nil. Errors
// must wrap ENOSPC. In the end the disk has free space.
func (d *Disk) FailEach(op func(attempt int) error, failed func(err error)) {
	d.Helper()
	const plenty = 1 << 10
	attempts, failures := 0, 0
	for _, step := range []Space{{Inodes: 1}, {Blocks: 1}} {
		free := Space{Blocks: plenty * step.Inodes, Inodes: plenty * step.Blocks}
		for {
			d.Leave(free)
			err := op(attempts)
			attempts++
			if err == nil {
				break
			}
			failures++
			if !errors.Is(err, unix.ENOSPC) {
				d.Errorf("attempt with %+v free: %v", free, err)
			}
			if failed != nil {
				failed(err)
			}
			if d.Failed() {
				break
			}
			free.Blocks += step.Blocks
			free.Inodes += step.Inodes
		}
		d.Free()
	}
	if failures == 0 {
		d.Error("the operation succeeded on a full disk")
	}
}
