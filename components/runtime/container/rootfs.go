//go:build cgo

// Package container runs containers with libcontainer and translates CRI container configurations
// for it. No other package uses libcontainer.
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

// Overlay is the root file system of a container, or the content of an image volume: read-only layers and optionally a
// writable directory on top.
type Overlay struct {
	// Lower are the directories of the layers, lowest first, as returned by images.Store.LayerDir.
	// All of them are two levels below a common directory.
	Lower []string
	// Upper and Work are directories of the same file system. Both are empty for a read-only root.
	Upper, Work string
	// Target is the mount point.
	Target string
	// UserNS maps the owners of files to the users of the pod. Nil means the host's users.
	UserNS *MappedUsers
	// Label is the SELinux label of all files. If empty, files keep their labels.
	Label string
}

// MappedUsers maps the owners of image files to users of a pod's user namespace.
type MappedUsers struct {
	// File is the pod's user namespace, as a path in /proc.
	File string
	// UID and GID are the host IDs of root in the pod.
	UID, GID int
	// Dir is a temporary directory for intermediate mounts.
	Dir string
}

// Mount creates the directories and mounts the overlay at Target. A single layer without a writable directory
// is bind-mounted read-only, because overlayfs needs two layers; with an SELinux label it is mounted on an
// empty layer instead, because a bind mount keeps the labels of its source. It returns an error if there are no
// layers. The caller unmounts it with Unmount, also after an error.
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
			return fmt.Errorf("mapping image owners to the pod's user namespace: %w", err)
		}
		o.Lower = lower
		if o.Upper != "" {
			if err := os.Chown(o.Upper, u.UID, u.GID); err != nil {
				return fmt.Errorf("mounting the container's root: %w", err)
			}
		}
	}
	if len(o.Lower) == 1 && o.Upper == "" && o.Label != "" {
		// A bind mount would keep the labels of its source.
		empty := o.Target + ".empty"
		if err := os.MkdirAll(empty, 0o755); err != nil {
			return fmt.Errorf("mounting the image: %w", err)
		}
		o.Lower = []string{empty, o.Lower[0]}
	}
	if len(o.Lower) == 1 && o.Upper == "" {
		// An overlay needs at least two layers.
		if err := unix.Mount(o.Lower[0], o.Target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting the image: %w", err)
		}
		if err := unix.Mount("", o.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(fmt.Errorf("mounting the image: %w", err), Unmount(o.Target))
		}
		return nil
	}
	// A container's writable layer is not used after a power failure, so it need not be synced, in
	// particular when it is unmounted. Kernels before 5.10 do not support the option.
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

// mount mounts the overlay with the layers lower, lowest first. option is an additional mount option, which is empty or
// starts with a comma. It returns E2BIG if the options do not fit in one page.
func (o Overlay) mount(lower []string, option string) error {
	options := make([]string, 0, 4)
	top := make([]string, len(lower))
	for i, dir := range lower {
		// A colon is the separator and a backslash the escape character.
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

// mapAll bind-mounts each layer in u.Dir with mapped owners, because an overlay itself cannot map them, and returns the
// mount points. The caller unmounts them when the overlay is mounted.
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

// mountMapped bind-mounts dir read-only at target. Owners of files are mapped to the user namespace with the file
// descriptor ns.
func mountMapped(dir, target string, ns int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", dir, err)
	}
	defer unix.Close(fd)
	// Read-only, so that an error in a later step cannot change the image.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(ns), Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mapping owners of %s (requires Linux 5.19 and a file system that supports ID-mapped mounts): %w", dir, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %s: %w", target, err)
	}
	return nil
}

// mountRelative mounts the overlay like mount, but names the layers by paths relative to their common directory,
// because the absolute paths do not fit in one page of mount options. It runs on a dedicated thread because it
// changes the working directory.
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
		runtime.LockOSThread() // never unlocked, so that the thread exits
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

// Unmount unmounts everything that is mounted at target, even if it is in use. It is not an error if nothing is mounted
// or target does not exist.
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

// UnmountIn unmounts everything in the subdirectories of dir and removes dir. Mounts that are in
// use stay until they are released. It is not an error if dir does not exist.
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

// ResolveInRoot resolves the path sub in the directory root as a process with this root would: symlinks never lead
// outside of it. It returns the resulting path on the host, which is root if sub is empty. It returns an error if the
// path does not exist.
func ResolveInRoot(root, sub string) (string, error) {
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
