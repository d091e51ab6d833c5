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
)

// Overlay is a container's root: layers below, its own changes above.
type Overlay struct {
	// Lower are the layers' folders, the lowest first. They share one parent
	// folder's parent, see LayersDir.
	Lower []string
	// Upper and Work are folders of one filesystem; both empty for a root
	// that nobody can write to.
	Upper, Work string
	// Target is where it is mounted.
	Target string
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
	err := o.mount(o.Lower)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL) && len(strings.Join(o.Lower, ":")) > 3500 {
		err = o.mountRelative()
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("mounting the container's root: %w (is %s itself on an overlay?)", err, o.Upper)
	}
	if err != nil {
		return fmt.Errorf("mounting the container's root: %w", err)
	}
	return nil
}

func (o Overlay) mount(lower []string) error {
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
	data := strings.Join(options, ",")
	if len(data) >= os.Getpagesize() {
		return unix.E2BIG
	}
	return unix.Mount("overlay", o.Target, "overlay", 0, data)
}

// mountRelative mounts from the layers' common folder, for options must fit
// one page. It takes a thread that nobody else's working folder depends on.
func (o Overlay) mountRelative() error {
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
			return o.mount(lower)
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
