package testdisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// maxFreeze is the maximum time in seconds for which a disk is frozen. A process that writes to a
// frozen file system cannot be killed.
const maxFreeze = "60"

// Device is an ext4 file system on a loop device, for tests on a disk that does more than a Disk:
// writes can be suspended, as on an overloaded disk, and the kernel writes files to it
// asynchronously.
type Device struct {
	t    testing.TB
	path string
}

// NewDevice creates a file system with the given size in bytes. It is unmounted at the end of the test, or
// when the process exits. The test is skipped if this user cannot mount one.
func NewDevice(t testing.TB, size int64) *Device {
	t.Helper()
	dir := t.TempDir()
	image, d := filepath.Join(dir, "image"), &Device{t: t, path: filepath.Join(dir, "disk")}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(d.path, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, d.path}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("requires a dedicated file system: %v: %s", err, out)
		}
	}
	unmount, err := d.shell("true", "0", `umount -l "$0"`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Path returns the directory where the file system is mounted.
func (d *Device) Path() string { return d.path }

// Freeze suspends writes to the file system until the returned function is called, or for maxFreeze
// at most. The function may be called more than once. Both report errors to the test.
func (d *Device) Freeze() (thaw func()) {
	d.t.Helper()
	release, err := d.shell(`fsfreeze -f "$0"`, maxFreeze, `fsfreeze -u "$0"`)
	if err != nil {
		d.t.Error(err)
		return func() {}
	}
	return func() {
		if err := release(); err != nil {
			d.t.Error(err)
		}
	}
}

// shell runs the shell command first, and later the command last: when the returned function is
// called, after the given number of seconds unless it is 0, or when this process exits. In the
// commands, $0 is the path of the file system.
func (d *Device) shell(first, seconds, last string) (end func() error, err error) {
	cmd := exec.Command("sh", "-c", first+" && echo && timeout "+seconds+" cat; "+last, d.path)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", first, err), in.Close(), cmd.Wait())
	}
	return sync.OnceValue(func() error { return errors.Join(in.Close(), cmd.Wait()) }), nil
}

// Fill uses all free space until the returned function is called. Both report errors to the test.
func (d *Device) Fill() (free func()) {
	d.t.Helper()
	path := filepath.Join(d.path, "filler")
	file, err := os.Create(path)
	if err != nil {
		d.t.Error(err)
		return func() {}
	}
	defer file.Close()
	offset := int64(0)
	for size := int64(1 << 30); size >= 4096; {
		switch err := unix.Fallocate(int(file.Fd()), 0, offset, size); {
		case err == nil:
			offset += size
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		default:
			d.t.Errorf("filling the disk: %v", err)
			size = 0
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			d.t.Error(err)
		}
	}
}
