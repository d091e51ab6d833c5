package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// ChangeGroup changes the group of the volume at root to group, the pod's fsGroup, including all files in it.
// With the policy OnRootMismatch it does nothing if the root directory already has that group and the
// permissions that go with it. report, which may be nil, is called with upstream's message when the change
// takes long. It is not called after ChangeGroup has returned.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods
func ChangeGroup(pod *v1.Pod, root string, group int64, report func(message string)) error {
	_, below, ok := strings.Cut(root, string(pod.UID))
	name := root
	if ok {
		name = string(pod.UID) + below
	}
	// A local volume may be a symbolic link to a directory.
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("reading the volume: %w", err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return fmt.Errorf("reading the volume: %w", err)
	}
	if hasGroup(pod, info, group) {
		return nil
	}
	slow := newSlowReporter(name, report)
	defer slow.stop()
	return setGroupCounting(root, group, false, &slow.files)
}

// hasGroup reports whether the change of the group can be skipped: the policy is OnRootMismatch, and the root
// directory already has the group, all permissions for it, and the setgid bit.
func hasGroup(pod *v1.Pod, root os.FileInfo, group int64) bool {
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if policy == nil || *policy != v1.FSGroupChangeOnRootMismatch {
		return false
	}
	st, ok := root.Sys().(*syscall.Stat_t)
	return ok && int64(st.Gid) == group && root.Mode()&os.ModeSetgid != 0 && root.Mode()&0o070 == 0o070
}

// lacksGroup reports whether the group of the volume at dir was never changed: it is still root, as created,
// and the directory has no setgid bit.
func lacksGroup(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Gid == 0 && st.Mode&unix.S_ISGID == 0
}

// setGroup changes the group of the directory tree root to group for fsGroup. The group gets read access and,
// unless readOnly, write access. Files created later in its directories inherit the group. Files that
// disappear during the change are ignored.
func setGroup(root string, group int64, readOnly bool) error {
	return setGroupCounting(root, group, readOnly, &atomic.Int64{})
}

// setGroupCounting does what setGroup does, and adds to files while it processes them, so that another goroutine
// can report the progress.
func setGroupCounting(root string, group int64, readOnly bool, files *atomic.Int64) error {
	g := groupChange{group: int(group), mask: 0o660, files: files}
	if readOnly {
		g.mask = 0o440
	}
	if err := g.apply(unix.AT_FDCWD, root); err != nil {
		return fmt.Errorf("changing the volume's group to %d: %w", group, err)
	}
	return nil
}

// groupChange is a change of the group of a directory tree. Other pods may modify the volume at the same
// time: a file is changed only by its descriptor because its path may be replaced by a symbolic
// link.
type groupChange struct {
	group int
	mask  uint32
	files *atomic.Int64
}

// apply changes the group and the permissions of the entry name of the directory descriptor dir and of
// everything below it. Of a symbolic link, only the group is changed; it is not followed. An entry that does
// not exist any more is no error.
func (g *groupChange) apply(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	own := os.NewFile(uintptr(fd), name)
	defer func() { own.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	g.files.Add(1)
	if err := unix.Fchownat(fd, "", -1, g.group, unix.AT_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	kind, mode := st.Mode&unix.S_IFMT, st.Mode&0o7777|g.mask
	if kind == unix.S_IFLNK {
		return nil
	}
	if kind == unix.S_IFDIR {
		mode |= unix.S_ISGID | 0o110
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode, 0); err != nil {
		return &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	if kind != unix.S_IFDIR {
		return nil
	}
	// The first descriptor is opened with O_PATH and cannot be read.
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	own.Close()
	own = os.NewFile(uintptr(list), name)
	for {
		names, err := own.Readdirnames(1024)
		for _, n := range names {
			if err := g.apply(list, n); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "list", Path: name, Err: err}
		}
	}
}
