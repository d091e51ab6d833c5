package hostjournal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	link, sysctl := Change{Kind: Link, Name: "x0"}, Change{Kind: Sysctl, Name: "net/a", Before: "0"}
	for range 2 {
		if err := j.Record(link, sysctl); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	// Simulate a crash while a line was written.
	f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	f.WriteString(`{"kind":"li`)
	f.Close()
	if j, err = Open(path); err != nil {
		t.Fatal(err)
	}
	// The first value of a sysctl is restored.
	if err := j.Record(Change{Kind: Sysctl, Name: "net/a", Before: "1"}, Change{Kind: Link, Name: "x1"}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	got, err := Read(path)
	want := []Change{link, sysctl, {Kind: Link, Name: "x1"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v; want %v", got, err, want)
	}
	var none *Journal
	if err := none.Record(link); err != nil {
		t.Error(err)
	}
}

func TestUndo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mounted := filepath.Join(dir, "m")
	path := filepath.Join(t.TempDir(), "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Record(
		Change{Kind: Dir, Name: mounted}, Change{Kind: Mount, Name: mounted}, Change{Kind: Link, Name: "hkt*"},
		Change{Kind: Link, Name: "never"}, Change{Kind: Mount, Name: filepath.Join(dir, "never")},
		Change{Kind: Cgroup, Name: "/hyperkube-test-never"},
		Change{Kind: Sysctl, Name: "net/ipv4/conf/all/route_localnet", Before: "0"},
	); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := unix.Mount("none", mounted, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "hkt0"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time simulates a retry after an interruption
		if err := Undo(context.Background(), path, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(mounted); !os.IsNotExist(err) {
		t.Errorf("the directory still exists: %v", err)
	}
	if _, err := netlink.LinkByName("hkt0"); !isGone(err) {
		t.Errorf("the link still exists: %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the journal still exists: %v", err)
	}
}

// TestNoFunction checks that changes of a kind without a function stay in the journal.
func TestNoFunction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	rule := Change{Kind: Rule, Name: "4 nat POSTROUTING", Args: []string{"-j", "HK-A"}}
	if err := errors.Join(j.Record(rule), j.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Undo(t.Context(), path, nil); err == nil || !strings.Contains(err.Error(), "rule 4 nat POSTROUTING") {
		t.Errorf("without a function: %v", err)
	}
	var got []Change
	functions := Functions{Rule: func(_ context.Context, changes []Change) error {
		got = changes
		return nil
	}}
	if err := Undo(t.Context(), path, functions); err != nil || !reflect.DeepEqual(got, []Change{rule}) {
		t.Errorf("reverted %v, %v", got, err)
	}
}

// TestReadOnlyFilesystem opens a journal on a disk that is read-only for some time.
func TestReadOnlyFilesystem(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	old, next := Change{Kind: Dir, Name: "/old"}, Change{Kind: Dir, Name: "/next"}
	if err := errors.Join(j.Record(old), j.Close()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skip("needs to mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(path); err != nil {
		t.Fatal(err)
	}
	if err := j.Record(old); err != nil {
		t.Errorf("recording an existing change: %v", err)
	}
	if err := j.Record(next); !errors.Is(err, unix.EROFS) {
		t.Errorf("recording a new change: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Record(next), j.Close()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if changes, err := Read(path); err != nil || len(changes) != 2 {
		t.Errorf("recorded are %v, %v", changes, err)
	}
}

// TestRemoveTree checks that a mount point is emptied, and that nothing is removed from other
// filesystems mounted below.
func TestRemoveTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	below := filepath.Join(dir, "below")
	file := filepath.Join(dir, "file")
	fill := func() {
		t.Helper()
		if err := errors.Join(os.MkdirAll(below, 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	mount := func(at string) {
		t.Helper()
		if err := unix.Mount("none", at, "tmpfs", 0, ""); err != nil {
			t.Skip("needs to mount:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	if err := RemoveTree(dir); err != nil {
		t.Errorf("nothing: %v", err)
	}
	fill()
	if err := RemoveTree(dir); err != nil || exists(dir) {
		t.Errorf("the directory: %v", err)
	}
	fill()
	mount(dir)
	fill()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(dir); err != nil || !exists(dir) || exists(file) || exists(below) || !exists(filepath.Join(dir, "lost+found")) {
		t.Errorf("a mount point: %v", err)
	}
	fill()
	mount(below)
	if err := RemoveTree(dir); err == nil || !exists(file) {
		t.Errorf("a mount point with another one below: %v", err)
	}
}

// TestRemoveTreeBySymlink checks that mounted filesystems keep their content even if the path
// contains symlinks, and that a symlink to another disk and the empty directory it points to
// remain.
func TestRemoveTreeBySymlink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	base := t.TempDir()
	kept, below := filepath.Join(base, "disk", "lib", "a", "kept"), filepath.Join(base, "disk", "lib", "a")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("disk", filepath.Join(base, "var")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("disk/lib", filepath.Join(base, "lib")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", below, "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"lib", "var/lib", "var/lib/a/../../lib"} {
		if err := RemoveTree(filepath.Join(base, dir)); err == nil || !strings.Contains(err.Error(), "is still mounted") {
			t.Errorf("removing %s: %v", dir, err)
		}
		if err := undoDir(Change{Kind: Dir, Name: filepath.Join(base, dir)}); err == nil {
			t.Errorf("%s was removed", dir)
		}
		if !exists(kept) {
			t.Fatalf("%s: a file on a mounted filesystem was deleted", dir)
		}
	}
	if err := undoMount(Change{Kind: Mount, Name: filepath.Join(base, "var", "lib", "a")}); err != nil || exists(kept) {
		t.Fatalf("unmounting through a symlink: %v", err)
	}
	if err := RemoveTree(filepath.Join(base, "lib")); err != nil || !exists(filepath.Join(base, "lib")) || exists(below) {
		t.Errorf("emptying the target of a symlink: %v", err)
	}
	if err := RemoveTree(filepath.Join(base, "none")); err != nil {
		t.Errorf("removing a missing directory: %v", err)
	}
}
