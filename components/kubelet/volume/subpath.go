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
// returns that place. Links in the volume lead where they lead on the node, and
// one that leaves the volume is an error. What is found is pinned by a descriptor
// before it is mounted, so that nothing can be swapped in between. A path that is
// not there is made as a directory.
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
		return "", fmt.Errorf("making the place of a subPath: %w", err)
	}
	target := filepath.Join(parent, strconv.Itoa(index))
	// A mount of an earlier attempt may be of a file that has been replaced.
	if err := Unmount(target); err != nil {
		return "", err
	}
	if err := removeTree(target); err != nil {
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

// openSubPath opens what a subPath of a volume leads to, and makes it if it is
// not there. The caller closes it.
func openSubPath(root, sub string) (*os.File, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("opening the volume: %w", err)
	}
	var info unix.Stat_t
	if err := unix.Stat(root, &info); err != nil {
		return nil, fmt.Errorf("opening the volume: %w", err)
	}
	there, missing, err := existing(root, sub)
	if err != nil {
		return nil, err
	}
	// No link is left in the path, unless a container has just made one, which
	// then leads to a place within the volume.
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
	// The umask does not say who may write to a volume, and what is made in
	// it belongs to the volume's group as what is made in its root does.
	if err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), info.Mode&0o7777, 0); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// existing cuts a path within root in two: what is there, with all links
// resolved and relative to root, and what is not. Root has no links itself.
func existing(root, sub string) (there, missing string, err error) {
	sub = filepath.Clean(sub)
	for at := sub; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(filepath.Join(root, at))
		switch {
		case errors.Is(err, os.ErrNotExist):
			// Nothing is made through a link that leads to nothing.
			if _, err := os.Lstat(filepath.Join(root, at)); err == nil {
				return "", "", fmt.Errorf("%s is a link to what does not exist", at)
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
