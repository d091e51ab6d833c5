package images

import (
	"archive/tar"
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
	// aufs leaves other names with this prefix in old layers; they mean
	// nothing.
	whiteoutMeta = ".wh..wh."
	// opaqueAttr tells overlayfs to show nothing of the layers below in a folder.
	opaqueAttr = "trusted.overlay.opaque"
)

// unpacker writes a layer's tar stream into a folder, which it never leaves:
// every parent folder is resolved inside of it by the kernel, and what an
// entry names is only ever touched relative to its parent, following no link.
// Whiteouts become what overlayfs understands.
type unpacker struct {
	root *os.File
	// parent is the folder of the last entry: most follow their siblings.
	parent     *os.File
	parentPath string
	// dirs are the folders' times, set at the end because their contents
	// change them.
	dirs map[string]time.Time
}

// unpack writes the uncompressed layer r into the empty folder dir.
func unpack(ctx context.Context, dir string, r io.Reader) error {
	root, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the layer's directory: %w", err)
	}
	defer root.Close()
	u := &unpacker{root: root, dirs: map[string]time.Time{}}
	defer u.forget()
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
			return fmt.Errorf("reading the layer: %w", err)
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

func (u *unpacker) forget() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

// dir returns the folder, made if it is missing. It stays open until the next
// call.
func (u *unpacker) dir(name string) (*os.File, error) {
	if u.parent != nil && u.parentPath == name {
		return u.parent, nil
	}
	u.forget()
	dir, err := pathrs.MkdirAllHandle(u.root, name, 0o755)
	if err != nil {
		return nil, err
	}
	u.parent, u.parentPath = dir, name
	return dir, nil
}

// entry unpacks one entry of the archive.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if strings.ContainsRune(h.Name, 0) || strings.ContainsRune(h.Linkname, 0) {
		return errors.New("the name has a NUL in it")
	}
	name := path.Clean("/" + h.Name)[1:]
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return nil
		}
		// The root itself: its owner and mode count.
		return u.root1(h)
	}
	folder, base := path.Split(name)
	parent, err := u.dir(path.Clean("/" + folder)[1:])
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
			return errors.New("bad whiteout")
		}
		return hide(at, base)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.folder(at, base, h); err != nil {
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
		// Containers get their devices from the runtime; those of an image
		// would be the host's, and 0:0 a whiteout.
		return nil
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("unknown kind of entry %q", h.Typeflag)
	}
}

// modeOf returns the bits of an entry's mode that chmod knows.
func modeOf(h *tar.Header) uint32 { return uint32(h.Mode & 0o7777) }

// folder makes base a folder in the folder at. One that is there stays, with what it has;
// its time is set at the end, for what comes into it changes that.
func (u *unpacker) folder(at int, base string, h *tar.Header) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	hides := err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
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
	if hides {
		// What the layers below have there is hidden still.
		if err := setXattr(at, base, opaqueAttr, []byte("y")); err != nil {
			return err
		}
	}
	return attributes(at, base, h)
}

// file makes base a regular file in the folder at.
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

// symlink makes base a symbolic link in the folder at, wherever it may lead.
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

// hardLink makes base, in the folder at, another name of what target names in the layer.
func (u *unpacker) hardLink(at int, base, target string) error {
	target = path.Clean("/" + target)[1:]
	if target == "" {
		return errors.New("hard link to the root")
	}
	targetDir, targetBase := path.Split(target)
	from, err := pathrs.OpenatInRoot(u.root, targetDir)
	if err != nil {
		return fmt.Errorf("finding the target of the hard link: %w", err)
	}
	defer from.Close()
	if same(int(from.Fd()), targetBase, at, base) {
		return nil
	}
	if err := u.remove(at, base); err != nil {
		return err
	}
	return unix.Linkat(int(from.Fd()), targetBase, at, base, 0)
}

// fifo makes base a named pipe in the folder at.
func (u *unpacker) fifo(at int, base string, h *tar.Header) error {
	if err := u.remove(at, base); err != nil {
		return err
	}
	if err := unix.Mknodat(at, base, unix.S_IFIFO|modeOf(h), 0); err != nil {
		return err
	}
	return attributes(at, base, h)
}

// hide hides what the layers below have of that name. What this layer has itself
// stays, whichever comes first in the archive.
//
// https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
func hide(at int, base string) error {
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

// root1 sets what an entry says of the root.
func (u *unpacker) root1(h *tar.Header) error {
	root, err := pathrs.Reopen(u.root, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer root.Close()
	return attributes(int(root.Fd()), "", h)
}

// attributes sets owner, mode, extended attributes and time of what base names
// in the folder at, or with no base of the open file at.
func attributes(at int, base string, h *tar.Header) error {
	mode := modeOf(h)
	var err error
	if base == "" {
		err = unix.Fchown(at, h.Uid, h.Gid)
	} else {
		err = unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("setting the owner: %w", err)
	}
	if base == "" {
		err = unix.Fchmod(at, mode)
	} else {
		// Only folders and FIFOs that were just made come here: no link.
		err = unix.Fchmodat(at, base, mode, 0)
	}
	if err != nil {
		return fmt.Errorf("setting the mode: %w", err)
	}
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		// The others are the host's affair, overlayfs' own above all.
		if !ok || attr != "security.capability" && !strings.HasPrefix(attr, "user.") {
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

// setTimes is best effort: times before 1970 are refused by some filesystems.
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

// setXattr goes through /proc, for there is no call relative to a folder in
// older kernels, and an open folder may be open for its path alone.
func setXattr(at int, base, attr string, value []byte) error {
	file := fmt.Sprintf("/proc/self/fd/%d", at)
	if base != "" {
		return unix.Lsetxattr(file+"/"+base, attr, value, 0)
	}
	return unix.Setxattr(file, attr, value, 0)
}

func same(at1 int, base1 string, at2 int, base2 string) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(at1, base1, &a, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstatat(at2, base2, &b, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino
}

// remove removes what base names in the folder at, with all in it, following
// no link. What is not there is no error.
func (u *unpacker) remove(at int, base string) error {
	err := unix.Unlinkat(at, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// What was cached may be in it.
	var keep *os.File
	if u.parent != nil && int(u.parent.Fd()) == at {
		keep = u.parent
	} else {
		u.forget()
	}
	err = removeAll(at, base)
	if keep == nil {
		u.forget()
	}
	return err
}

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
