//go:build cgo

package mountspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// step is one mount to create in the container's mount namespace, and the cgroup hierarchies to mount in it.
type step struct {
	mount *configs.Mount
	// tree is the detached copy of a bind mount's source, or negative. file reports whether the
	// source is not a directory.
	tree int
	file bool
	// parts are mounted in subdirectories of the mount.
	parts []part
}

// part is a cgroup hierarchy to mount in the subdirectory name of the container's /sys/fs/cgroup. tree is the file
// descriptor of its detached mount.
type part struct {
	name string
	tree int
}

// mountTrees are file descriptors of detached mounts: mounts that are not attached to any path yet. Mounts that are
// still detached when the descriptors are closed disappear.
type mountTrees struct{ fds []int }

// add adds the file descriptor fd to those that close closes, and returns fd.
func (t *mountTrees) add(fd int) int {
	t.fds = append(t.fds, fd)
	return fd
}

func (t *mountTrees) close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
}

// clone returns a detached copy of the mount at path on the host. If all is true, it includes the mounts below it. The
// copy is private: later mounts in it and in the original do not propagate to each other.
func (t *mountTrees) clone(path string, all bool) (int, error) {
	flags, at := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(unix.AT_EMPTY_PATH)
	if all {
		flags |= unix.AT_RECURSIVE
		at |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err != nil {
		return -1, fmt.Errorf("copying mount of %s: %w", path, err)
	}
	t.add(fd)
	if err := unix.MountSetattr(fd, "", at, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return -1, fmt.Errorf("making mount of %s private: %w", path, err)
	}
	return fd, nil
}

// newFilesystem creates a file system of type kind and returns its detached mount. options are mount options in the
// form key or key=value, and flags those of mount(2). If label is not empty, all files in it have that SELinux label;
// otherwise the policy decides.
func (t *mountTrees) newFilesystem(kind, source string, options []string, label string, flags int) (int, error) {
	fail := func(err error) (int, error) {
		return -1, fmt.Errorf("creating file system of type %s: %w", kind, err)
	}
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", source); err != nil {
		return fail(err)
	}
	if flags&unix.MS_RDONLY != 0 {
		options = append(options, "ro")
	}
	for _, option := range options {
		if key, value, found := strings.Cut(option, "="); found {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return fail(fmt.Errorf("option %s: %w", option, err))
		}
	}
	if label != "" {
		// The label is not passed as an option because it contains commas.
		if err := unix.FsconfigSetString(fs, "context", label); err != nil {
			return fail(fmt.Errorf("label %s: %w", label, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fail(err)
	}
	set, _ := attributes(flags)
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(set))
	if err != nil {
		return fail(err)
	}
	return t.add(fd), nil
}

// attributes converts the flags of mount(2) to the mount attributes to set, and to those that must be cleared for the
// result to be the same.
func attributes(flags int) (set, clr uint64) {
	for _, f := range []struct {
		flag int
		attr uint64
	}{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY}, {unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID}, {unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC}, {unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if flags&f.flag != 0 {
			set |= f.attr
		} else {
			clr |= f.attr
		}
	}
	// Without any of these flags, a bind mount inherits the attributes of its source.
	if flags&(unix.MS_NOATIME|unix.MS_RELATIME|unix.MS_STRICTATIME|unix.MS_NODIRATIME) != 0 {
		clr |= unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
		switch {
		case flags&unix.MS_NOATIME != 0:
			set |= unix.MOUNT_ATTR_NOATIME
		case flags&unix.MS_STRICTATIME != 0:
			set |= unix.MOUNT_ATTR_STRICTATIME
		}
		if flags&unix.MS_NODIRATIME != 0 {
			set |= unix.MOUNT_ATTR_NODIRATIME
		}
	}
	return set, clr
}

// setBindFlags sets the flags that m requests on tree, the detached copy of its source. If m requests none, the copy
// keeps the flags of the source.
func setBindFlags(tree int, m *configs.Mount) error {
	if m.Flags&^(unix.MS_BIND|unix.MS_REC|unix.MS_REMOUNT) != 0 || m.ClearedFlags != 0 {
		set, clr := attributes(m.Flags)
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set, Attr_clr: clr}); err != nil {
			return fmt.Errorf("setting flags of the mount at %s: %w", m.Destination, err)
		}
	}
	if m.RecAttr != nil {
		attr := *m.RecAttr
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("setting flags of the mounts at %s: %w", m.Destination, err)
		}
	}
	return nil
}

// isFile reports whether the detached mount fd is not a directory, so its mount point must be a file.
func isFile(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("reading type of mount source: %w", err)
	}
	return st.Mode&unix.S_IFMT != unix.S_IFDIR, nil
}

// builder creates the mounts of one container in the mount namespace of its thread, see Maker.Make.
type builder struct {
	root string
	plan Plan
	*mountTrees

	// proc is true if a directory for /proc must exist.
	proc bool
	// rootDir is the container's root.
	rootDir *os.File
	// dev is the device number of the file system mounted at /dev.
	dev uint64
	// readOnly are the mounts that become read-only when everything is mounted in them.
	readOnly []int
}

// build mounts root, the detached copy of the container's root, at b.root in the new namespace. Then it creates the
// mounts in steps and the device nodes of the container in it.
func (b *builder) build(root int, steps []step) error {
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, b.root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the container's root: %w", err)
	}
	var err error
	if b.rootDir, err = os.OpenFile(b.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the container's root: %w", err)
	}
	defer b.rootDir.Close()
	if err := b.join(); err != nil {
		return err
	}
	for _, s := range steps {
		if err := b.step(s); err != nil {
			return fmt.Errorf("mounting at %s: %w", s.mount.Destination, err)
		}
	}
	if b.proc {
		fd, err := b.openTarget("/proc", false, true)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	for _, d := range b.plan.Devices {
		if err := b.device(d); err != nil {
			return fmt.Errorf("creating device %s: %w", d.Path, err)
		}
	}
	for _, tree := range b.readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("making a mount read-only: %w", err)
		}
	}
	return nil
}

// join moves the thread to the pod's network and IPC namespaces, because sysfs and mqueue show the namespace of the
// thread that mounts them.
func (b *builder) join() error {
	for kind, path := range map[int]string{unix.CLONE_NEWNET: b.plan.Network, unix.CLONE_NEWIPC: b.plan.IPC} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening namespace: %w", err)
		}
		err = unix.Setns(fd, kind)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("joining namespace: %w", err)
		}
	}
	return nil
}

// step creates the mount that s describes and attaches it at its destination in the container's root.
func (b *builder) step(s step) error {
	m := s.mount
	target, err := b.target(m.Destination, s.file, m.Device == "sysfs")
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree := s.tree
	if tree < 0 {
		kind, options, flags := m.Device, strings.FieldsFunc(m.Data, func(r rune) bool { return r == ',' }), m.Flags
		switch kind {
		case "cgroup":
			kind, options, flags = "tmpfs", []string{"mode=755"}, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC
		case "tmpfs":
			// Use the mode of the mount point, unless a mode is specified.
			var st unix.Stat_t
			if err := unix.Fstat(target, &st); err != nil {
				return err
			}
			options = append([]string{fmt.Sprintf("mode=%04o", st.Mode&0o7777)}, options...)
		}
		source := m.Source
		if source == "" || m.Device == "cgroup" {
			source = kind
		}
		label := b.plan.Label
		if kind != "tmpfs" && kind != "devpts" {
			label = "" // labels of kernel file systems are set by the policy
		}
		if tree, err = b.newFilesystem(kind, source, options, label, flags); err != nil {
			return err
		}
		if kind == "mqueue" {
			if err := b.labelTop(tree); err != nil {
				return err
			}
		}
	}
	if err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	if isDev(m) {
		var st unix.Stat_t
		if err := unix.Fstat(tree, &st); err != nil {
			return err
		}
		b.dev = st.Dev
	}
	if len(s.parts) > 0 && m.Flags&unix.MS_RDONLY != 0 {
		b.readOnly = append(b.readOnly, tree)
	}
	for _, p := range s.parts {
		if err := unix.Mkdirat(tree, p.name, 0o755); err != nil {
			return fmt.Errorf("creating directory %s: %w", p.name, err)
		}
		if err := unix.MoveMount(p.tree, "", tree, p.name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mounting at directory %s: %w", p.name, err)
		}
		if !strings.Contains(p.name, ",") {
			continue
		}
		for one := range strings.SplitSeq(p.name, ",") {
			if err := unix.Symlinkat(p.name, tree, one); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("linking %s: %w", one, err)
			}
		}
	}
	return nil
}

// labelTop sets the plan's SELinux label on the root directory of the detached mount tree. It is for mqueue, which does
// not support a mount option for the label of all files.
func (b *builder) labelTop(tree int) error {
	if b.plan.Label == "" {
		return nil
	}
	return unix.Setxattr(fmt.Sprintf("/proc/thread-self/fd/%d", tree), "security.selinux", []byte(b.plan.Label), 0)
}

// target opens the mount point destination in the container's root as an O_PATH file descriptor. Symlinks are
// resolved within that root. A missing mount point is created, as a file if file is true. If direct is true,
// symlinks are an error. It returns ErrUnsupported for mount points in /proc and for the root itself.
func (b *builder) target(destination string, file, direct bool) (int, error) {
	fd, err := b.openTarget(destination, file, direct)
	if err != nil {
		return -1, err
	}
	if err := b.check(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openTarget opens the mount point destination like target, but also accepts mount points that target rejects, such
// as those in /proc.
func (b *builder) openTarget(destination string, file, direct bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if direct {
		how.Flags |= unix.O_DIRECTORY
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := unix.Openat2(int(b.rootDir.Fd()), destination, &how)
	if errors.Is(err, unix.ENOENT) {
		return b.makeTarget(destination, file)
	}
	return fd, err
}

// makeTarget creates the missing mount point destination, a directory or, with file, a file, with its parent
// directories and opens it. A file that exists is an error.
func (b *builder) makeTarget(destination string, file bool) (int, error) {
	dir := destination
	if file {
		dir = filepath.Dir(filepath.Clean(destination))
	}
	handle, err := pathrs.MkdirAllHandle(b.rootDir, dir, 0o755)
	if err != nil {
		return -1, err
	}
	defer handle.Close()
	if !file {
		return unix.FcntlInt(handle.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat(int(handle.Fd()), filepath.Base(destination), unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
}

// check returns ErrUnsupported if the opened mount point fd, after symlinks are resolved, is the container's root
// itself or in its /proc.
func (b *builder) check(fd int) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", fd))
	if err != nil {
		return err
	}
	inside, ok := strings.CutPrefix(path, b.root+"/")
	if !ok || inside == "proc" || strings.HasPrefix(inside, "proc/") {
		return ErrUnsupported
	}
	return nil
}

// device creates a device node, unless a file with its path exists. It does nothing for a device without a path
// and for /dev/ptmx, which devpts provides. It returns ErrUnsupported for anything but block and character
// devices, and if the path is not in the /dev that was created for this container, because other processes may
// modify other directories.
func (b *builder) device(d *config.Device) error {
	path := filepath.Clean(d.Path)
	if d.Path == "" || path == "/dev/ptmx" {
		return nil // cgroup rule only, or created with devpts
	}
	mode := uint32(d.FileMode.Perm())
	if d.FileMode&^os.ModePerm != 0 {
		return ErrUnsupported
	}
	switch d.Type {
	case config.BlockDevice:
		mode |= unix.S_IFBLK
	case config.CharDevice:
		mode |= unix.S_IFCHR
	default:
		return ErrUnsupported
	}
	dir, err := b.target(filepath.Dir(path), false, false)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if st.Dev != b.dev {
		return ErrUnsupported
	}
	number, err := d.Mkdev()
	if err != nil {
		return err
	}
	err = unix.Mknodat(dir, filepath.Base(path), mode, int(number))
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err == nil && d.Uid|d.Gid != 0 {
		err = unix.Fchownat(dir, filepath.Base(path), int(d.Uid), int(d.Gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	return err
}
