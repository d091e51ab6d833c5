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

// SubPath bind-mounts a path within a volume to a place of the pod's own and
// returns that place. The path is resolved within the volume, whatever links a
// container may have made there, and pinned by a descriptor before it is
// mounted, so that nothing can be swapped in between. A path that is not there
// is made as a directory.
func (s *Set) SubPath(podDir, volume, root, sub, container string, index int) (string, error) {
	if filepath.IsAbs(sub) || strings.Contains("/"+sub+"/", "/../") {
		return "", fmt.Errorf("subPath %q must not be absolute or contain '..'", sub)
	}
	var info unix.Stat_t
	if err := unix.Stat(root, &info); err != nil {
		return "", fmt.Errorf("opening the volume: %w", err)
	}
	source, err := pathrs.OpenInRoot(root, sub)
	if errors.Is(err, os.ErrNotExist) {
		var dir *os.File
		base, openErr := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if openErr != nil {
			return "", fmt.Errorf("opening the volume: %w", openErr)
		}
		dir, err = pathrs.MkdirAllHandle(base, sub, os.FileMode(info.Mode).Perm())
		base.Close()
		if err == nil {
			// The umask does not say who may write to a volume, and what is made in
			// it belongs to the volume's group as what is made in its root does.
			err = unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), info.Mode&0o7777, 0)
			source = dir
		}
	}
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
		return "", fmt.Errorf("making the place of a subPath: %w", err)
	}
	target := filepath.Join(parent, strconv.Itoa(index))
	// A mount of an earlier attempt may be of a file that has been replaced.
	if err := unmount(target); err != nil {
		return "", err
	}
	if err := os.RemoveAll(target); err != nil {
		return "", fmt.Errorf("clearing the place of a subPath: %w", err)
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
		return "", fmt.Errorf("making the place of a subPath: %w", err)
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("mounting subPath %q: %w", sub, err)
	}
	return target, nil
}
