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

// step is one mount to be made.
type step struct {
	mount *configs.Mount
	// tree is the detached copy of a bind mount's source, else negative; file
	// tells that it is none of a folder.
	tree int
	file bool
	// parts are mounted in folders of it.
	parts []part
}

type part struct {
	name string
	tree int
}

// trees are descriptors of detached mounts. What has not been attached when they
// are closed is gone.
type trees struct{ fds []int }

func (t *trees) add(fd int) int {
	t.fds = append(t.fds, fd)
	return fd
}

func (t *trees) close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
}

// clone copies the mount at path, with all below it if that is wanted. What is
// mounted there later, here or there, is not seen on the other side.
func (t *trees) clone(path string, all bool) (int, error) {
	flags, at := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(unix.AT_EMPTY_PATH)
	if all {
		flags |= unix.AT_RECURSIVE
		at |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err != nil {
		return -1, fmt.Errorf("copying the mount of %s: %w", path, err)
	}
	t.add(fd)
	if err := unix.MountSetattr(fd, "", at, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return -1, fmt.Errorf("separating the mount of %s: %w", path, err)
	}
	return fd, nil
}

// fresh makes a file system, not attached yet. All files in it have label; an empty
// one leaves that to the policy.
func (t *trees) fresh(kind, source string, options []string, label string, flags int) (int, error) {
	fail := func(err error) (int, error) {
		return -1, fmt.Errorf("making a file system of type %s: %w", kind, err)
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
		// Not one of options, for it has commas.
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

// attributes translates mount(2)'s flags: the attributes to be set, and those
// to be cleared for the others to count.
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
	// With none of these flags a bind mount keeps what its source has.
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

// setBindFlags gives the copy of a bind mount's source the flags that are asked
// for; without any it keeps its own.
func setBindFlags(tree int, m *configs.Mount) error {
	if m.Flags&^(unix.MS_BIND|unix.MS_REC|unix.MS_REMOUNT) != 0 || m.ClearedFlags != 0 {
		set, clr := attributes(m.Flags)
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set, Attr_clr: clr}); err != nil {
			return fmt.Errorf("setting the flags of the mount at %s: %w", m.Destination, err)
		}
	}
	if m.RecAttr != nil {
		attr := *m.RecAttr
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("setting the flags of the mounts at %s: %w", m.Destination, err)
		}
	}
	return nil
}

func isFile(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("looking at a mount's source: %w", err)
	}
	return st.Mode&unix.S_IFMT != unix.S_IFDIR, nil
}

// builder fills the namespace that its thread is in.
type builder struct {
	root string
	plan Plan
	*trees

	// proc tells that there must be a folder for /proc.
	proc bool
	// top is the container's root.
	top *os.File
	// dev is the number of the file system that is /dev.
	dev uint64
}

// build mounts everything; root is the detached copy of the container's root.
func (b *builder) build(root int, steps []step) error {
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, b.root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the container's root: %w", err)
	}
	var err error
	if b.top, err = os.OpenFile(b.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the container's root: %w", err)
	}
	defer b.top.Close()
	if err := b.join(); err != nil {
		return err
	}
	for _, s := range steps {
		if err := b.step(s); err != nil {
			return fmt.Errorf("mounting at %s: %w", s.mount.Destination, err)
		}
	}
	if b.proc {
		fd, err := b.place("/proc", false, true)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	for _, d := range b.plan.Devices {
		if err := b.device(d); err != nil {
			return fmt.Errorf("making device %s: %w", d.Path, err)
		}
	}
	return nil
}

// join puts the thread into the namespaces that some file systems show.
func (b *builder) join() error {
	for kind, path := range map[int]string{unix.CLONE_NEWNET: b.plan.Network, unix.CLONE_NEWIPC: b.plan.IPC} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening a namespace: %w", err)
		}
		err = unix.Setns(fd, kind)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("joining a namespace: %w", err)
		}
	}
	return nil
}

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
			// The folder's own mode, unless another is asked for.
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
			label = "" // those of the kernel have labels of their own
		}
		if tree, err = b.fresh(kind, source, options, label, flags); err != nil {
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
	for _, p := range s.parts {
		if err := unix.Mkdirat(tree, p.name, 0o755); err != nil {
			return fmt.Errorf("making directory %s: %w", p.name, err)
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

// labelTop gives the plan's label to the folder that a file system begins with, for
// those whose files cannot all have one.
func (b *builder) labelTop(tree int) error {
	if b.plan.Label == "" {
		return nil
	}
	return unix.Setxattr(fmt.Sprintf("/proc/thread-self/fd/%d", tree), "security.selinux", []byte(b.plan.Label), 0)
}

// target opens the place of a mount in the container's root, in which every link
// leads somewhere in that root. What is missing is made. Where links are not to
// be followed they are refused, and so is what lies in /proc.
func (b *builder) target(destination string, file, direct bool) (int, error) {
	fd, err := b.place(destination, file, direct)
	if err != nil {
		return -1, err
	}
	if err := b.check(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (b *builder) place(destination string, file, direct bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if direct {
		how.Flags |= unix.O_DIRECTORY
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := unix.Openat2(int(b.top.Fd()), destination, &how)
	if errors.Is(err, unix.ENOENT) {
		return b.makeTarget(destination, file)
	}
	return fd, err
}

func (b *builder) makeTarget(destination string, file bool) (int, error) {
	dir := destination
	if file {
		dir = filepath.Dir(filepath.Clean(destination))
	}
	handle, err := pathrs.MkdirAllHandle(b.top, dir, 0o755)
	if err != nil {
		return -1, err
	}
	defer handle.Close()
	if !file {
		return unix.FcntlInt(handle.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat(int(handle.Fd()), filepath.Base(destination), unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
}

// check refuses what is the root itself or lies in its /proc, whatever links led
// there.
func (b *builder) check(fd int) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", fd))
	if err != nil {
		return err
	}
	inside, ok := strings.CutPrefix(path, b.root+"/")
	if !ok || inside == "proc" || strings.HasPrefix(inside, "proc/") {
		return ErrUnsuited
	}
	return nil
}

// device makes a device's node, unless there is something of its name. Only in
// the container's own /dev nobody else can be at work.
func (b *builder) device(d *config.Device) error {
	path := filepath.Clean(d.Path)
	if d.Path == "" || path == "/dev/ptmx" {
		return nil // of cgroups alone, or made with the terminals
	}
	mode := uint32(d.FileMode.Perm())
	if d.FileMode&^os.ModePerm != 0 {
		return ErrUnsuited
	}
	switch d.Type {
	case config.BlockDevice:
		mode |= unix.S_IFBLK
	case config.CharDevice:
		mode |= unix.S_IFCHR
	default:
		return ErrUnsuited
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
		return ErrUnsuited
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
