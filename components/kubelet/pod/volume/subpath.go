package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// SubPath bind-mounts the path sub of a volume in the directory of the pod, podDir, and returns the path of the
// mount, which the container uses. root is the directory of the volume, and index the index of the container's
// volumeMount. Symbolic links in the volume are resolved as on the node; a link that leaves the volume is an
// error. The path is opened before the mount, so that a container cannot replace it in between. A path that
// does not exist is created as a directory. An earlier mount for the same volumeMount is replaced.
func (s *Set) SubPath(podDir, volume, root, sub, container string, index int) (string, error) {
	if filepath.IsAbs(sub) || strings.Contains("/"+sub+"/", "/../") {
		return "", fmt.Errorf("subPath %q must not be absolute or contain '..'", sub)
	}
	source, err := openSubPath(root, sub)
	if err != nil {
		return "", fmt.Errorf("opening subPath %q: %w", sub, err)
	}
	defer source.Close()
	kind, err := os.Stat("/proc/self/fd/" + strconv.Itoa(int(source.Fd())))
	if err != nil {
		return "", fmt.Errorf("opening subPath %q: %w", sub, err)
	}
	parent := filepath.Join(podDir, "volume-subpaths", volume, container)
	if err := os.MkdirAll(parent, 0o750); err != nil {
		return "", fmt.Errorf("creating the mount point of a subPath: %w", err)
	}
	target := filepath.Join(parent, strconv.Itoa(index))
	// A mount of an earlier attempt may refer to a file that has been replaced.
	if err := Unmount(target); err != nil {
		return "", err
	}
	if err := removeTree(target); err != nil {
		return "", fmt.Errorf("removing the mount point of a subPath: %w", err)
	}
	if kind.IsDir() {
		err = os.Mkdir(target, 0o750)
	} else {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o640); err == nil {
			f.Close()
		}
	}
	if err != nil {
		return "", fmt.Errorf("creating the mount point of a subPath: %w", err)
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("mounting subPath %q: %w", sub, err)
	}
	return target, nil
}

// openSubPath opens the path sub of the volume at root. A path that does not exist is created as a directory
// with the mode of root. The caller must close the file.
func openSubPath(root, sub string) (*os.File, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("opening the volume: %w", err)
	}
	var info unix.Stat_t
	if err := unix.Stat(root, &info); err != nil {
		return nil, fmt.Errorf("opening the volume: %w", err)
	}
	there, missing, err := splitExisting(root, sub)
	if err != nil {
		return nil, err
	}
	// The path contains no links any more, unless a container has just created one, which can only
	// resolve within the volume.
	if missing == "" {
		return pathrs.OpenInRoot(root, there)
	}
	base, err := pathrs.OpenInRoot(root, there)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	dir, err := pathrs.MkdirAllHandle(base, missing, os.FileMode(info.Mode).Perm())
	if err != nil {
		return nil, err
	}
	// The umask must not restrict access to a volume, and a directory created in the volume
	// inherits its group like those created in the volume's root.
	if err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), info.Mode&0o7777, 0); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// splitExisting splits a path within root into the existing part, relative to root and with all links resolved,
// and the missing part, which is "" if the whole path exists. A dangling link and a path outside of root are
// errors. root must not contain links.
func splitExisting(root, sub string) (there, missing string, err error) {
	sub = filepath.Clean(sub)
	for at := sub; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(filepath.Join(root, at))
		switch {
		case errors.Is(err, os.ErrNotExist):
			// Nothing is created through a dangling link.
			if _, err := os.Lstat(filepath.Join(root, at)); err == nil {
				return "", "", fmt.Errorf("%s is a dangling link", at)
			}
			if at == "." {
				return "", "", err
			}
			missing = filepath.Join(filepath.Base(at), missing)
			continue
		case err != nil:
			return "", "", err
		}
		there, err = filepath.Rel(root, real)
		if err != nil {
			return "", "", err
		}
		if there == ".." || strings.HasPrefix(there, "../") {
			return "", "", fmt.Errorf("%s is outside of the volume", at)
		}
		return there, missing, nil
	}
}
