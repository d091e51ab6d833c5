package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeTree removes path and everything below it. It does not enter a mount point, even one that is mounted
// during the removal, because that would delete data of the mounted volume; it returns an error instead.
// Symbolic links are removed, not followed. A path that does not exist is no error.
func removeTree(path string) error {
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	defer parent.Close()
	if err := removeAt(int(parent.Fd()), filepath.Base(path)); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

// removeAt removes the entry name of the directory descriptor dir, and everything below it. It returns an error
// at the first mount point; an entry that does not exist is no error.
func removeAt(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return &os.PathError{Op: "unlinkat", Path: name, Err: err}
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	}
	fd, err := unix.Openat2(dir, name, &how)
	if errors.Is(err, unix.EXDEV) {
		return &os.PathError{Op: "open", Path: name, Err: errors.New("is still a mount point")}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	own := os.NewFile(uintptr(fd), name)
	defer own.Close()
	for {
		// Names are read in chunks because a container may have created any number of files.
		names, readErr := own.Readdirnames(1024)
		for _, n := range names {
			if err := removeAt(fd, n); err != nil {
				return err
			}
		}
		if len(names) == 0 || readErr != nil {
			break
		}
		if _, err := own.Seek(0, 0); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}
