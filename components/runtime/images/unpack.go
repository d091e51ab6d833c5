package images

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	// aufs has left other names with this prefix in old layers. They are ignored.
	whiteoutMeta = ".wh..wh."
	// opaqueAttr marks a directory as opaque for overlayfs: the content of lower layers is hidden.
	opaqueAttr = "trusted.overlay.opaque"
)

// unpacker writes the entries of a layer's tar archive to a directory and never outside of it: the kernel resolves
// every parent directory within the root, and entries are accessed relative to their parent without following symlinks.
// Whiteouts, which mark entries of lower layers as deleted, are converted to those of overlayfs.
type unpacker struct {
	root *os.File
	// parent is the directory of the previous entry, because most entries follow a sibling.
	parent     *os.File
	parentPath string
	// dirs are the modification times of directories. They are set at the end, because adding
	// entries changes them.
	dirs map[string]time.Time
}

// unpack unpacks the uncompressed layer r into the empty directory dir, until ctx is done. Modification times
// of directories are set at the end.
func unpack(ctx context.Context, dir string, r io.Reader) error {
	root, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening directory of layer: %w", err)
	}
	defer root.Close()
	u := &unpacker{root: root, dirs: map[string]time.Time{}}
	defer u.closeParent()
	archive := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading layer: %w", err)
		}
		if err := u.entry(header, archive); err != nil {
			return fmt.Errorf("unpacking %q: %w", header.Name, err)
		}
	}
	for name, modified := range u.dirs {
		dir, err := pathrs.OpenatInRoot(u.root, name)
		if err != nil {
			continue // replaced by a later entry
		}
		setTimes(int(dir.Fd()), "", modified)
		dir.Close()
	}
	return nil
}

// closeParent closes the cached directory of the previous entry.
func (u *unpacker) closeParent() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

// dir opens the directory name in the layer, which is created if it does not exist. The unpacker owns the file, which
// is valid until the next call.
func (u *unpacker) dir(name string) (*os.File, error) {
	if u.parent != nil && u.parentPath == name {
		return u.parent, nil
	}
	u.closeParent()
	dir, err := pathrs.MkdirAllHandle(u.root, name, 0o755)
	if err != nil {
		return nil, err
	}
	u.parent, u.parentPath = dir, name
	return dir, nil
}

// entry unpacks one entry of the archive. It converts whiteouts, which delete files of lower layers, to those of
// overlayfs. Device nodes are ignored, because those of an image would give access to devices of the host.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if strings.ContainsRune(h.Name, 0) || strings.ContainsRune(h.Linkname, 0) {
		return errors.New("name contains a NUL character")
	}
	name := path.Clean("/" + h.Name)[1:]
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return nil
		}
		// The root itself: set its owner and mode.
		return u.rootEntry(h)
	}
	parentName, base := path.Split(name)
	parent, err := u.dir(path.Clean("/" + parentName)[1:])
	if err != nil {
		return err
	}
	at := int(parent.Fd())
	switch {
	case base == opaque:
		return setXattr(at, "", opaqueAttr, []byte("y"))
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	case strings.HasPrefix(base, whiteout):
		base = base[len(whiteout):]
		if base == "" || base == "." || base == ".." {
			return errors.New("invalid whiteout")
		}
		return writeWhiteout(at, base)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.directory(at, base, h); err != nil {
			return err
		}
		u.dirs[name] = h.ModTime
		return nil
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(at, base, h, content)
	case tar.TypeSymlink:
		return u.symlink(at, base, h)
	case tar.TypeLink:
		return u.hardLink(at, base, h.Linkname)
	case tar.TypeFifo:
		return u.fifo(at, base, h)
	case tar.TypeChar, tar.TypeBlock:
		// Devices are created by the runtime. Those of an image would refer to devices of the host,
		// and 0:0 is a whiteout.
		return nil
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("unknown entry type %q", h.Typeflag)
	}
}

// modeOf returns the permission bits of an entry, including setuid, setgid and sticky.
func modeOf(h *tar.Header) uint32 { return uint32(h.Mode & 0o7777) }

// directory creates the directory base in the directory at. An existing directory keeps its content. A whiteout or file
// of this name is replaced; after a whiteout, the content of lower layers stays hidden. unpack sets the modification
// time at the end, because adding entries changes it.
func (u *unpacker) directory(at int, base string, h *tar.Header) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	whiteoutExists := err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := u.remove(at, base); err != nil {
			return err
		}
		err = unix.ENOENT
	}
	if err != nil {
		if err := unix.Mkdirat(at, base, modeOf(h)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if whiteoutExists {
		// Content of lower layers stays hidden.
		if err := setXattr(at, base, opaqueAttr, []byte("y")); err != nil {
			return err
		}
	}
	return attributes(at, base, h)
}

// file creates the regular file base in the directory at. An existing entry is replaced.
func (u *unpacker) file(at int, base string, h *tar.Header, content io.Reader) error {
	if err := u.remove(at, base); err != nil {
		return err
	}
	fd, err := unix.Openat(at, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	_, err = io.Copy(f, content)
	if err == nil {
		err = attributes(fd, "", h)
	}
	return errors.Join(err, f.Close())
}

// symlink creates the symlink base in the directory at. An existing entry is replaced. The target may be any path,
// because it is resolved only in containers.
func (u *unpacker) symlink(at int, base string, h *tar.Header) error {
	if err := u.remove(at, base); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
		return err
	}
	if err := unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	setTimes(at, base, h.ModTime)
	return nil
}

// hardLink creates base in the directory at as a hard link to target, a path in the layer. An existing entry is
// replaced. It is an error if the target does not exist.
func (u *unpacker) hardLink(at int, base, target string) error {
	target = path.Clean("/" + target)[1:]
	if target == "" {
		return errors.New("hard link to the root")
	}
	targetDir, targetBase := path.Split(target)
	from, err := pathrs.OpenatInRoot(u.root, cmp.Or(targetDir, "."))
	if err != nil {
		return fmt.Errorf("resolving target of hard link: %w", err)
	}
	defer from.Close()
	if sameFile(int(from.Fd()), targetBase, at, base) {
		return nil
	}
	if err := u.remove(at, base); err != nil {
		return err
	}
	return unix.Linkat(int(from.Fd()), targetBase, at, base, 0)
}

// fifo creates the named pipe base in the directory at. An existing entry is replaced.
func (u *unpacker) fifo(at int, base string, h *tar.Header) error {
	if err := u.remove(at, base); err != nil {
		return err
	}
	if err := unix.Mknodat(at, base, unix.S_IFIFO|modeOf(h), 0); err != nil {
		return err
	}
	return attributes(at, base, h)
}

// writeWhiteout hides the entry base, in the directory at, of lower layers. An entry base of this layer stays, whether
// it comes before or after the whiteout in the archive. A directory of this layer only hides the content of the lower
// one.
//
// https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
func writeWhiteout(at int, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return unix.Mknodat(at, base, unix.S_IFCHR, 0)
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return setXattr(at, base, opaqueAttr, []byte("y"))
	}
	return nil
}

// rootEntry applies the owner, mode and extended attributes of an entry to the root directory of the layer.
func (u *unpacker) rootEntry(h *tar.Header) error {
	root, err := pathrs.Reopen(u.root, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer root.Close()
	return attributes(int(root.Fd()), "", h)
}

// attributes sets the owner, mode, extended attributes and modification time of an entry to those of h. It sets only
// the extended attributes that are harmless on the host. The entry is base in the directory at, or the open file at if
// base is empty. The time of a directory is not set.
func attributes(at int, base string, h *tar.Header) error {
	mode := modeOf(h)
	var err error
	if base == "" {
		err = unix.Fchown(at, h.Uid, h.Gid)
	} else {
		err = unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("setting owner: %w", err)
	}
	if base == "" {
		err = unix.Fchmod(at, mode)
	} else {
		// base is a directory or FIFO that was just created, not a symlink.
		err = unix.Fchmodat(at, base, mode, 0)
	}
	if err != nil {
		return fmt.Errorf("setting mode: %w", err)
	}
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		// Other extended attributes affect the host, in particular those of overlayfs.
		if !ok || attr != "security.capability" && !strings.HasPrefix(attr, "user.") || strings.HasPrefix(attr, "user.overlay.") {
			continue
		}
		if err := setXattr(at, base, attr, []byte(value)); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("setting attribute %s: %w", attr, err)
		}
	}
	if h.Typeflag != tar.TypeDir {
		setTimes(at, base, h.ModTime)
	}
	return nil
}

// setTimes sets the access and modification times of base in the directory at, or of at itself if base is empty. Errors
// are ignored, because some file systems reject times before 1970.
func setTimes(at int, base string, modified time.Time) {
	if modified.IsZero() {
		modified = time.Unix(0, 0)
	}
	times := []unix.Timespec{unix.NsecToTimespec(modified.UnixNano()), unix.NsecToTimespec(modified.UnixNano())}
	flags := unix.AT_SYMLINK_NOFOLLOW
	if base == "" {
		flags = unix.AT_EMPTY_PATH
	}
	_ = unix.UtimesNanoAt(at, base, times, flags)
}

// setXattr sets an extended attribute of base in the directory at, or of at itself if base is empty. It uses a path in
// /proc, because older kernels have no call relative to a directory, and an O_PATH descriptor does not support
// fsetxattr.
func setXattr(at int, base, attr string, value []byte) error {
	file := fmt.Sprintf("/proc/self/fd/%d", at)
	if base != "" {
		return unix.Lsetxattr(file+"/"+base, attr, value, 0)
	}
	return unix.Setxattr(file, attr, value, 0)
}

// sameFile reports whether the entry base1 of the directory at1 and the entry base2 of the directory at2 exist and
// are the same file.
func sameFile(at1 int, base1 string, at2 int, base2 string) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(at1, base1, &a, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstatat(at2, base2, &b, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino
}

// remove removes base in the directory at, recursively and without following symlinks. It is not an
// error if base does not exist.
func (u *unpacker) remove(at int, base string) error {
	err := unix.Unlinkat(at, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// The cached directory may be inside.
	var keep *os.File
	if u.parent != nil && int(u.parent.Fd()) == at {
		keep = u.parent
	} else {
		u.closeParent()
	}
	err = removeAll(at, base)
	if keep == nil {
		u.closeParent()
	}
	return err
}

// removeAll removes the directory base in the directory at with its content, without following symlinks.
func removeAll(at int, base string) error {
	fd, err := unix.Openat(at, base, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), base)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			err := unix.Unlinkat(fd, name, 0)
			if errors.Is(err, unix.EISDIR) {
				err = removeAll(fd, name)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) || len(names) == 0 {
			break
		}
		if err != nil {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.Unlinkat(at, base, unix.AT_REMOVEDIR)
}
