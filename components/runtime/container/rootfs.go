//go:build cgo

// Package container runs containers through libcontainer, and makes what it
// needs of what CRI asks for. Nothing else of this program knows libcontainer.
package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/selinux"
)

// Overlay is a container's root: layers below, its own changes above.
type Overlay struct {
	// Lower are the layers' folders, the lowest first, as images.Store.LayerDir
	// gives them: all of them two levels below one folder.
	Lower []string
	// Upper and Work are folders of one filesystem; both empty for a root
	// that nobody can write to.
	Upper, Work string
	// Target is where it is mounted.
	Target string
	// UserNS is nil for the host's users.
	UserNS *MappedUsers
	// Label is the SELinux label of all files; empty for those that they have.
	Label string
}

// MappedUsers lets files of the image belong to the users of a pod.
type MappedUsers struct {
	// File is the pod's user namespace, as a file of /proc.
	File string
	// UID and GID are the pod's root, as the host sees it.
	UID, GID int
	// Dir is a folder that is made for mounts that are gone afterwards.
	Dir string
}

// Mount mounts the overlay.
func (o Overlay) Mount() error {
	for _, dir := range []string{o.Upper, o.Work, o.Target} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("mounting the container's root: %w", err)
		}
	}
	if len(o.Lower) == 0 {
		return errors.New("mounting the container's root: the image has no layers")
	}
	if u := o.UserNS; u != nil {
		defer func() { _ = UnmountIn(u.Dir) }()
		lower, err := u.mapAll(o.Lower)
		if err != nil {
			return fmt.Errorf("mounting the image for the pod's users: %w", err)
		}
		o.Lower = lower
		if o.Upper != "" {
			if err := os.Chown(o.Upper, u.UID, u.GID); err != nil {
				return fmt.Errorf("mounting the container's root: %w", err)
			}
		}
	}
	if len(o.Lower) == 1 && o.Upper == "" && o.Label != "" {
		// A bind mount has the labels of its source.
		empty := o.Target + ".empty"
		if err := os.MkdirAll(empty, 0o755); err != nil {
			return fmt.Errorf("mounting the image: %w", err)
		}
		o.Lower = []string{empty, o.Lower[0]}
	}
	if len(o.Lower) == 1 && o.Upper == "" {
		// Overlays of one layer alone are not allowed.
		if err := unix.Mount(o.Lower[0], o.Target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting the image: %w", err)
		}
		if err := unix.Mount("", o.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(fmt.Errorf("mounting the image: %w", err), Unmount(o.Target))
		}
		return nil
	}
	// Nobody sees a container's own changes again after a power failure: they
	// need not be synced, least of all when it is unmounted. Kernels before
	// 5.10 do not know that.
	var err error
	for _, option := range []string{",volatile", ""} {
		if option != "" && o.Upper == "" {
			continue
		}
		err = o.mount(o.Lower, option)
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL) && len(strings.Join(o.Lower, ":")) > 3500 {
			err = o.mountRelative(option)
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("mounting the container's root: %w (is %s itself on an overlay?)", err, o.Upper)
	}
	if err != nil {
		return fmt.Errorf("mounting the container's root: %w", err)
	}
	return nil
}

// mount mounts with a further option, which is empty or begins with a comma.
func (o Overlay) mount(lower []string, option string) error {
	options := make([]string, 0, 4)
	top := make([]string, len(lower))
	for i, dir := range lower {
		// Colons separate, and backslashes escape.
		top[len(lower)-1-i] = strings.NewReplacer(`\`, `\\`, ":", `\:`).Replace(dir)
	}
	options = append(options, "lowerdir="+strings.Join(top, ":"))
	if o.Upper != "" {
		options = append(options, "upperdir="+o.Upper, "workdir="+o.Work)
	}
	data := strings.Join(options, ",") + option + selinux.MountOption(o.Label)
	if len(data) >= os.Getpagesize() {
		return unix.E2BIG
	}
	return unix.Mount("overlay", o.Target, "overlay", 0, data)
}

// mapAll mounts each folder once more, with owners mapped: overlays themselves
// cannot be.
func (u *MappedUsers) mapAll(dirs []string) ([]string, error) {
	ns, err := os.Open(u.File)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	out := make([]string, len(dirs))
	for i, dir := range dirs {
		out[i] = filepath.Join(u.Dir, fmt.Sprint(i))
		if err := os.MkdirAll(out[i], 0o700); err != nil {
			return nil, err
		}
		if err := mountMapped(dir, out[i], int(ns.Fd())); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func mountMapped(dir, target string, ns int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", dir, err)
	}
	defer unix.Close(fd)
	// Read-only, so that nothing that goes wrong later can change the image.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(ns), Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mapping the owners of %s (Linux 5.19 or newer and a file system that can are needed): %w", dir, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %s: %w", target, err)
	}
	return nil
}

// mountRelative mounts from the layers' common folder, for options must fit
// one page. It takes a thread that nobody else's working folder depends on.
func (o Overlay) mountRelative(option string) error {
	base := filepath.Dir(filepath.Dir(o.Lower[0]))
	lower := make([]string, len(o.Lower))
	for i, dir := range o.Lower {
		rel, err := filepath.Rel(base, dir)
		if err != nil {
			return err
		}
		lower[i] = rel
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Chdir(base); err != nil {
				return err
			}
			return o.mount(lower, option)
		}()
	}()
	return <-done
}

// Unmount takes away whatever is mounted at target; nothing is no error.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmounting %s: %w", target, err)
		}
	}
}

// UnmountIn takes away what is mounted at the folders in dir, and dir; who uses
// what was mounted keeps it. No folder is no error.
func UnmountIn(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmounting below %s: %w", dir, err)
	}
	for _, e := range entries {
		if err := Unmount(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("unmounting below %s: %w", dir, err)
		}
	}
	return os.Remove(dir)
}

// Inside returns the path of what sub names in the folder root, which it never
// leaves.
func Inside(root, sub string) (string, error) {
	if sub == "" {
		return root, nil
	}
	handle, err := pathrs.OpenInRoot(root, sub)
	if err != nil {
		return "", err
	}
	defer handle.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()))
}
