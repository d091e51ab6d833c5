//go:build cgo

// Package mountspace prepares the mount namespaces of containers. It creates the mounts that
// libcontainer's init process would create, but before that process is started. This takes a
// fraction of the time, because the runtime process is already warm and uses the newer mount API of
// the kernel.
//
// A namespace starts almost empty instead of as a copy of all mounts of the host. Host files for
// the container are attached as detached mount trees. libcontainer joins the namespace, creates the
// mounts that require a process of the container (/proc), and pivots to the container's root as
// usual.
//
// Unusual settings return ErrUnsupported: mount propagation, user namespaces, mount points in /proc.
// The caller then leaves all mounts to libcontainer.
package mountspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// ErrUnsupported reports that this package does not support a container's mounts, or that the kernel
// is older than 5.12.
var ErrUnsupported = errors.New("mounts cannot be created ahead")

// Maker creates the mount namespaces of containers, see Make. Its methods are safe for concurrent use.
type Maker struct {
	// root is the path of the container's root in every namespace. It exists as an empty directory
	// on the host too.
	root string

	once sync.Once
	// seed is the namespace from which all others are cloned. seedErr is the error of creating it.
	seed    *os.File
	seedErr error
}

// New returns a Maker. root is the path of the container's root in all namespaces. The path is
// created as an empty directory on the host when it is first needed.
func New(root string) *Maker { return &Maker{root: root} }

// Root returns the path of the container's root in the namespaces.
func (m *Maker) Root() string { return m.root }

// Close closes the seed namespace, of which new mount namespaces are copies. No other call may be in progress or
// follow. Mount namespaces that Make has returned remain.
func (m *Maker) Close() error {
	m.once.Do(func() { m.seedErr = os.ErrClosed })
	if m.seed == nil {
		return nil
	}
	return m.seed.Close()
}

// Hierarchy is a cgroup hierarchy.
type Hierarchy struct {
	// Name is the directory name below /sys/fs/cgroup. A name with commas also gets a symlink for
	// each part. The unified hierarchy has no name: it is mounted at /sys/fs/cgroup itself and is
	// the only one.
	Name string
	// Dir is the container's cgroup directory, which must exist.
	Dir string
}

// Plan contains the mounts and devices that Make creates for a container.
type Plan struct {
	// Rootfs is the path of the container's root on the host.
	Rootfs string
	// Mounts are the mounts in libcontainer's form, in order.
	Mounts []*configs.Mount
	// Devices are created in the container's /dev.
	Devices []*config.Device
	// Label is the SELinux label of files that are created for the container. It may be empty.
	Label string
	// Network and IPC are the files of the namespaces that /sys and /dev/mqueue show.
	Network, IPC string
	// Cgroups is the content of the mount of type cgroup. If empty, libcontainer creates that
	// mount.
	Cgroups []Hierarchy
	// Proc is true if the container's init process can mount a standard /proc (with ProcFlags)
	// itself.
	Proc bool
}

// ProcFlags are the mount flags of a standard /proc.
const ProcFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Space is a prepared mount namespace of a container, which no process has joined yet.
type Space struct {
	// File keeps the namespace alive until a process has joined it. The caller closes it.
	File *os.File
	// Remaining are the mounts that a process of the container must create.
	Remaining []*configs.Mount
	// Proc is true if the container's init process must mount /proc. The mount point exists and is
	// not a symlink.
	Proc bool
}

// Make creates a mount namespace with the mounts of p. It returns ErrUnsupported if p contains settings that only
// libcontainer supports, or if the kernel is too old. After an error, nothing is left behind.
func (m *Maker) Make(p Plan) (*Space, error) {
	if m.once.Do(m.createSeed); m.seedErr != nil {
		return nil, m.seedErr
	}
	left, todo, proc, err := p.split()
	if err != nil {
		return nil, err
	}
	// Host directories are accessible only before the thread enters the namespace.
	t := &mountTrees{}
	defer t.close()
	root, err := t.clone(p.Rootfs, false)
	if err != nil {
		return nil, err
	}
	steps := make([]step, 0, len(todo))
	for _, mount := range todo {
		s := step{mount: mount, tree: -1}
		switch {
		case mount.Device == "cgroup":
			if len(p.Cgroups) == 1 && p.Cgroups[0].Name == "" {
				if s.tree, err = t.clone(p.Cgroups[0].Dir, false); err == nil {
					err = setBindFlags(s.tree, mount)
				}
				if err != nil {
					return nil, err
				}
				break
			}
			for _, h := range p.Cgroups {
				tree, err := t.clone(h.Dir, false)
				if err == nil {
					err = setBindFlags(tree, mount)
				}
				if err != nil {
					return nil, err
				}
				s.parts = append(s.parts, part{name: h.Name, tree: tree})
			}
		case mount.IsBind():
			if s.tree, err = t.clone(mount.Source, mount.Flags&unix.MS_REC != 0); err != nil {
				return nil, err
			}
			if err := setBindFlags(s.tree, mount); err != nil {
				return nil, err
			}
			if s.file, err = isFile(s.tree); err != nil {
				return nil, err
			}
		}
		steps = append(steps, s)
	}
	var space *os.File
	err = onDedicatedThread(func() error {
		if err := m.enterNew(); err != nil {
			return err
		}
		b := &builder{root: m.root, plan: p, mountTrees: t, proc: proc}
		if err := b.build(root, steps); err != nil {
			return err
		}
		var err error
		space, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Space{File: space, Remaining: left, Proc: proc}, nil
}

// split divides the mounts of the plan. todo can be created before the container's init process runs; left must be
// created by that process. proc reports whether the init process must also mount a standard /proc. It returns
// ErrUnsupported if all mounts must be left to libcontainer.
func (p Plan) split() (left, todo []*configs.Mount, proc bool, err error) {
	for _, m := range p.Mounts {
		destination := filepath.Clean(m.Destination)
		switch {
		case destination == "/proc" && m.Device == "proc":
			// proc must show the processes of the container's PID namespace.
			if p.Proc && !proc && m.Flags == ProcFlags && m.Data == "" && len(m.PropagationFlags) == 0 && m.RecAttr == nil {
				proc = true
			} else {
				left = append(left, m)
			}
			continue
		case m.Device == "cgroup" && len(p.Cgroups) == 0:
			left = append(left, m)
			continue
		case destination == "/" || destination == "/proc" || strings.HasPrefix(destination, "/proc/"),
			m.IsIDMapped(), m.Extensions != 0, destination == "/dev" && !isDev(m):
			return nil, nil, false, ErrUnsupported
		}
		for _, flag := range m.PropagationFlags {
			if flag&^unix.MS_REC != unix.MS_PRIVATE {
				return nil, nil, false, ErrUnsupported
			}
		}
		switch m.Device {
		case "bind", "devpts", "mqueue", "sysfs", "cgroup":
		case "tmpfs":
			if m.Flags&unix.MS_RDONLY != 0 {
				return nil, nil, false, ErrUnsupported // read-only mounts must be writable until they are filled
			}
		default:
			return nil, nil, false, ErrUnsupported
		}
		todo = append(todo, m)
	}
	if p.Network == "" || p.IPC == "" || !slices.ContainsFunc(todo, isDev) {
		return nil, nil, false, ErrUnsupported
	}
	// A mount created ahead must not be below one that is created later.
	for _, l := range left {
		below := filepath.Clean(l.Destination) + "/"
		if slices.ContainsFunc(todo, func(m *configs.Mount) bool { return strings.HasPrefix(filepath.Clean(m.Destination), below) }) {
			return nil, nil, false, ErrUnsupported
		}
	}
	return left, todo, proc, nil
}

// isDev reports whether a mount is the container's own /dev.
func isDev(m *configs.Mount) bool {
	return filepath.Clean(m.Destination) == "/dev" && m.Device == "tmpfs"
}

// onDedicatedThread runs f on a dedicated thread and waits for it. The thread exits afterwards, so f may change state
// of the thread, such as its namespaces. The main thread is never used, because /proc/PID shows its state.
func onDedicatedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onDedicatedThread(f) // use another thread, because this one is locked
			return
		}
		done <- f() // the thread stays locked, so it exits
	}()
	return <-done
}

// enterNew moves the thread to a new mount namespace, a copy of the seed namespace that createSeed has prepared.
func (m *Maker) enterNew() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unsharing file system state of the thread: %w", err)
	}
	unix.Umask(0)
	if err := unix.Setns(int(m.seed.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("joining a mount namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating mount namespace: %w", err)
	}
	return nil
}

// createSeed creates the seed namespace, of which every container's mount namespace starts as a copy. It contains an
// empty read-only root with the host's /proc and the directory for a container's root. After an error, seedErr is set
// and wraps ErrUnsupported, so containers are started without this package.
func (m *Maker) createSeed() {
	err := os.MkdirAll(m.root, 0o711)
	if err == nil {
		err = onDedicatedThread(m.createSeedOnThread)
	}
	if err != nil {
		m.seedErr = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
}

// createSeedOnThread implements createSeed on a thread that exits afterwards.
func (m *Maker) createSeedOnThread() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating mount namespace: %w", err)
	}
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	t := &mountTrees{}
	defer t.close()
	proc, err := t.clone("/proc", false)
	if err != nil {
		return err
	}
	root, err := t.newFilesystem("tmpfs", "hyperkube", []string{"mode=755", "size=64k"}, "", 0)
	if err != nil {
		return err
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, m.root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting a root: %w", err)
	}
	// Resolve paths in the new mount, which covers the directory with the same name.
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("changing to root: %w", err)
	}
	if err := unix.Mkdir("proc", 0o555); err != nil {
		return fmt.Errorf("creating root: %w", err)
	}
	if err := os.MkdirAll(strings.TrimPrefix(m.root, "/"), 0o711); err != nil {
		return fmt.Errorf("creating root: %w", err)
	}
	if err := unix.MoveMount(proc, "", root, "proc", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("making root read-only: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivoting root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("changing to root: %w", err)
	}
	m.seed, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}
