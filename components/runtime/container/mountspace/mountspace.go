//go:build cgo

// Package mountspace makes the mount namespaces of containers: it mounts what
// libcontainer's first process would mount in the container's name before that
// process is there, from a program that is warm and by the kernel's newer calls,
// which take a fraction of the time.
//
// A namespace begins with next to nothing, not with a copy of all that the host
// has mounted. What of the host a container gets is brought along as detached
// trees. libcontainer joins the namespace, mounts the little that only the
// container's own process can (/proc), and makes the container's root the root
// of all as ever.
//
// What is out of the ordinary is not done here (ErrUnsuited): mounts that
// propagate, mapped owners, destinations in /proc. Who gets
// that error leaves all mounting to libcontainer.
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

// ErrUnsuited tells that a container's mounts are not for this package, or the
// kernel is too old for it (5.12).
var ErrUnsuited = errors.New("mounts are not suited to be made ahead")

// Maker makes namespaces. Its methods are safe for several goroutines.
type Maker struct {
	// root is where every namespace has its container's root. It is an empty
	// folder of the host, too.
	root string

	once sync.Once
	// seed is the namespace that all begin as, seedErr why there is none.
	seed    *os.File
	seedErr error
}

// New makes a Maker. In all its namespaces the container's root is at root, a
// path that is made as an empty folder of the host, too, when it is first needed.
func New(root string) *Maker { return &Maker{root: root} }

// Root is where the namespaces have their container's root.
func (m *Maker) Root() string { return m.root }

// Close lets go of what all namespaces begin with. No call may be under way or
// follow.
func (m *Maker) Close() error {
	m.once.Do(func() { m.seedErr = os.ErrClosed })
	if m.seed == nil {
		return nil
	}
	return m.seed.Close()
}

// Hierarchy is a cgroup hierarchy.
type Hierarchy struct {
	// Name is the folder's name below /sys/fs/cgroup; one with commas has links
	// by each part. The unified hierarchy has no name: it is what is mounted there
	// itself, and the only one.
	Name string
	// Dir is the container's cgroup, which must be there.
	Dir string
}

// Plan says what to mount.
type Plan struct {
	// Rootfs is the container's root as it is mounted on the host.
	Rootfs string
	// Mounts are as libcontainer has them, in order.
	Mounts []*configs.Mount
	// Devices are made in the container's /dev.
	Devices []*config.Device
	// Label is the SELinux label of what is made for the container; empty for none.
	Label string
	// Network and IPC are the files of the namespaces that /sys and /dev/mqueue
	// are to show.
	Network, IPC string
	// Cgroups are what the mount of type cgroup shows; none where libcontainer
	// has to mount it.
	Cgroups []Hierarchy
	// Proc tells that the container's first process can mount an ordinary /proc,
	// one with ProcFlags, by itself.
	Proc bool
}

// ProcFlags are the flags of an ordinary /proc.
const ProcFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Space is a namespace that was made.
type Space struct {
	// File keeps the namespace until a process is in it; its taker closes it.
	File *os.File
	// Left are the mounts that are still to be made, by a process of the
	// container.
	Left []*configs.Mount
	// Proc tells that the container's first process is to mount /proc, at a folder
	// that is there and no link.
	Proc bool
}

// Make makes a namespace. On any error nothing is left.
func (m *Maker) Make(p Plan) (*Space, error) {
	if m.once.Do(m.sow); m.seedErr != nil {
		return nil, m.seedErr
	}
	left, todo, proc, err := p.divide()
	if err != nil {
		return nil, err
	}
	// The host's folders can be seen from here only.
	t := &trees{}
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
	err = onThreadOfItsOwn(func() error {
		if err := m.enterNew(); err != nil {
			return err
		}
		b := &builder{root: m.root, plan: p, trees: t, proc: proc}
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
	return &Space{File: space, Left: left, Proc: proc}, nil
}

// divide tells mounts that can be made ahead from those that cannot, and whether
// /proc is the first process's to mount.
func (p Plan) divide() (left, todo []*configs.Mount, proc bool, err error) {
	for _, m := range p.Mounts {
		destination := filepath.Clean(m.Destination)
		switch {
		case destination == "/proc" && m.Device == "proc":
			// It shows the container's own processes.
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
			return nil, nil, false, ErrUnsuited
		}
		for _, flag := range m.PropagationFlags {
			if flag&^unix.MS_REC != unix.MS_PRIVATE {
				return nil, nil, false, ErrUnsuited
			}
		}
		switch m.Device {
		case "bind", "devpts", "mqueue", "sysfs", "cgroup":
		case "tmpfs":
			if m.Flags&unix.MS_RDONLY != 0 {
				return nil, nil, false, ErrUnsuited // writable until all is in it
			}
		default:
			return nil, nil, false, ErrUnsuited
		}
		todo = append(todo, m)
	}
	if p.Network == "" || p.IPC == "" || !slices.ContainsFunc(todo, isDev) {
		return nil, nil, false, ErrUnsuited
	}
	// What comes later must not lie below what is left.
	for _, l := range left {
		below := filepath.Clean(l.Destination) + "/"
		if slices.ContainsFunc(todo, func(m *configs.Mount) bool { return strings.HasPrefix(filepath.Clean(m.Destination), below) }) {
			return nil, nil, false, ErrUnsuited
		}
	}
	return left, todo, proc, nil
}

// isDev tells the container's own /dev from other mounts.
func isDev(m *configs.Mount) bool {
	return filepath.Clean(m.Destination) == "/dev" && m.Device == "tmpfs"
}

// onThreadOfItsOwn runs f on a thread that ends with it, so that f may change
// what belongs to a thread. The first thread is never taken: the process is seen
// as it sees the world.
func onThreadOfItsOwn(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onThreadOfItsOwn(f) // on another, for this one is taken
			return
		}
		done <- f() // not unlocked: the thread ends
	}()
	return <-done
}

// enterNew puts the thread into a new namespace.
func (m *Maker) enterNew() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separating a thread: %w", err)
	}
	unix.Umask(0)
	if err := unix.Setns(int(m.seed.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("joining a mount namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	return nil
}

// sow makes the namespace that all begin as: an empty root that nobody can write
// to, with the host's /proc and the folder for a container's root.
func (m *Maker) sow() {
	err := os.MkdirAll(m.root, 0o711)
	if err == nil {
		err = onThreadOfItsOwn(m.sowHere)
	}
	if err != nil {
		m.seedErr = fmt.Errorf("%w: %w", ErrUnsuited, err)
	}
}

func (m *Maker) sowHere() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separating a mount namespace: %w", err)
	}
	t := &trees{}
	defer t.close()
	proc, err := t.clone("/proc", false)
	if err != nil {
		return err
	}
	root, err := t.fresh("tmpfs", "hyperkube", []string{"mode=755", "size=64k"}, "", 0)
	if err != nil {
		return err
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, m.root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting a root: %w", err)
	}
	// The mount is above the folder of the same name.
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("entering a root: %w", err)
	}
	if err := unix.Mkdir("proc", 0o555); err != nil {
		return fmt.Errorf("making a root: %w", err)
	}
	if err := os.MkdirAll(strings.TrimPrefix(m.root, "/"), 0o711); err != nil {
		return fmt.Errorf("making a root: %w", err)
	}
	if err := unix.MoveMount(proc, "", root, "proc", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("protecting a root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("entering a root: %w", err)
	}
	m.seed, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}
