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

// GiveTo gives a volume to a pod's group, unless the pod asks for a look at its
// root first and that is the group's already.
// tell, which may be nil, is told, in upstream's words, when that takes long; it is
// not called any more once GiveTo has returned.
// https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods
func GiveTo(pod *v1.Pod, root string, group int64, tell func(message string)) error {
	_, below, ok := strings.Cut(root, string(pod.UID))
	name := root
	if ok {
		name = string(pod.UID) + below
	}
	// A local volume may be a link to its folder.
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("looking at the volume: %w", err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return fmt.Errorf("looking at the volume: %w", err)
	}
	if owned(pod, info, group) {
		return nil
	}
	slow := newSlowly(name, tell)
	defer slow.stop()
	return setGroupCounting(root, group, false, &slow.files)
}

// owned tells whether a volume need not be given to the pod's group: its root is
// that already, and the pod asks for no more than to look there.
func owned(pod *v1.Pod, root os.FileInfo, group int64) bool {
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if policy == nil || *policy != v1.FSGroupChangeOnRootMismatch {
		return false
	}
	st, ok := root.Sys().(*syscall.Stat_t)
	return ok && int64(st.Gid) == group && root.Mode()&os.ModeSetgid != 0 && root.Mode()&0o070 == 0o070
}

// ungiven tells whether the volume whose root is at dir was never given to a
// group: it is root's yet, as it was made.
func ungiven(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Gid == 0 && st.Mode&unix.S_ISGID == 0
}

// setGroup gives a tree to a group, as fsGroup asks: the group may read it,
// write it too unless readOnly, and what is made in its directories later
// belongs to the group as well. What vanishes meanwhile is passed over.
func setGroup(root string, group int64, readOnly bool) error {
	return setGroupCounting(root, group, readOnly, &atomic.Int64{})
}

// setGroupCounting is setGroup that counts the files.
func setGroupCounting(root string, group int64, readOnly bool, files *atomic.Int64) error {
	g := giving{group: int(group), mask: 0o660, files: files}
	if readOnly {
		g.mask = 0o440
	}
	if err := g.give(unix.AT_FDCWD, root); err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", group, err)
	}
	return nil
}

// giving is a tree being given to a group. Other pods may be at work in the
// volume: a file is changed by its descriptor alone, for its path may lead
// anywhere by then.
type giving struct {
	group int
	mask  uint32
	files *atomic.Int64
}

// give gives away what is called name in the directory dir, and all below it.
func (g *giving) give(dir int, name string) error {
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
	// The first descriptor is good for the path alone.
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	own.Close()
	own = os.NewFile(uintptr(list), name)
	for {
		names, err := own.Readdirnames(1024)
		for _, n := range names {
			if err := g.give(list, n); err != nil {
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
