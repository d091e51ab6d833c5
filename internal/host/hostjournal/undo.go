package hostjournal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/netlinkutil"
)

// Functions revert changes of the kinds that belong to other packages, such as Rule and Chain. The
// changes of a kind are passed together, the last ones first. A function is called even if the
// changes do not exist anymore, and returns the errors of all of them.
type Functions map[Kind]func(ctx context.Context, changes []Change) error

// Undo reverts every change in the journal at path, and then removes the journal. It continues
// after errors and returns all of them. The caller can retry. No process may write to the journal.
func Undo(ctx context.Context, path string, others Functions) error {
	changes, err := Read(path)
	if err != nil {
		return err
	}
	if err := Revert(ctx, changes, others); err != nil {
		return fmt.Errorf("reverting host changes: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing host change journal: %w", err)
	}
	return nil
}

// Revert reverts changes, the last ones of each kind first, whether they still exist or not. It
// continues after errors and returns all of them.
func Revert(ctx context.Context, changes []Change, others Functions) error {
	return revert(ctx, changes, others, cgroupTimeout)
}

// cgroupTimeout is the timeout for the processes of a cgroup to exit after they were killed.
const cgroupTimeout = 30 * time.Second

func revert(ctx context.Context, changes []Change, others Functions, timeout time.Duration) error {
	by := map[Kind][]Change{}
	for _, change := range slices.Backward(changes) {
		by[change.Kind] = append(by[change.Kind], change)
	}
	// The order matters: processes use mounts, jump rules refer to chains, and routes are removed
	// with their links.
	var errs []error
	for _, one := range []struct {
		kind Kind
		undo func(context.Context, []Change) error
	}{
		{HostCgroup, undoCgroups(moveOut(timeout))}, {Cgroup, undoCgroups(killAll(timeout))}, {Firewalld, others[Firewalld]}, {Rule, others[Rule]}, {Chain, others[Chain]}, {Mount, each(undoMount)},
		{Route, each(undoRoute)}, {Link, each(undoLink)}, {Sysctl, each(undoParameter)}, {Module, each(undoParameter)}, {Dir, each(undoDir)},
	} {
		list := by[one.kind]
		switch {
		case len(list) == 0:
		case one.undo == nil:
			errs = append(errs, fmt.Errorf("%s %s: no function to revert changes of this kind", one.kind, list[0].Name))
		default:
			if err := one.undo(ctx, list); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func each(undo func(Change) error) func(context.Context, []Change) error {
	return func(ctx context.Context, changes []Change) error {
		var errs []error
		for _, c := range changes {
			if ctx.Err() != nil {
				return errors.Join(append(errs, ctx.Err())...)
			}
			if err := undo(c); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", c.Kind, c.Name, err))
			}
		}
		return errors.Join(errs...)
	}
}

// undoCgroups reverts the cgroups one by one.
func undoCgroups(undo func(context.Context, *cgroup.Manager, string) error) func(context.Context, []Change) error {
	return func(ctx context.Context, changes []Change) error {
		m, err := cgroup.Open()
		if err != nil {
			return err
		}
		var errs []error
		for _, c := range changes {
			errs = append(errs, undo(ctx, m, c.Name))
		}
		return errors.Join(errs...)
	}
}

// killAll kills the processes of a cgroup and removes it.
func killAll(timeout time.Duration) func(context.Context, *cgroup.Manager, string) error {
	return func(ctx context.Context, m *cgroup.Manager, name string) error {
		// After an interruption it may exist in some hierarchies only.
		return errors.Join(m.Kill(name), removeCgroup(ctx, m, name, timeout))
	}
}

// moveOut moves the processes of a cgroup to the root cgroup and removes the cgroup.
func moveOut(timeout time.Duration) func(context.Context, *cgroup.Manager, string) error {
	return func(ctx context.Context, m *cgroup.Manager, name string) error {
		// Repeat, because a process may have forked before it was moved.
		for {
			moved, err := m.Move(name, "/", func(int) bool { return true })
			if err != nil {
				return err
			}
			if moved == 0 || ctx.Err() != nil {
				break
			}
		}
		return removeCgroup(ctx, m, name, timeout)
	}
}

// removeCgroup waits at most for timeout, because some processes cannot be killed, such as those
// of another PID namespace or those that wait for a disk that does not respond.
func removeCgroup(ctx context.Context, m *cgroup.Manager, name string, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := m.Remove(waiting, name)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(err, occupiedError(m, name))
	}
	return err
}

// occupiedError returns an error that describes which processes prevent the removal of a cgroup and what
// to do about it.
func occupiedError(m *cgroup.Manager, name string) error {
	pids, err := m.Pids(name)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("processes %s are still in cgroup %s although they were killed: retry when they have exited",
			strings.Trim(fmt.Sprint(pids), "[]"), name)
	}
	return fmt.Errorf("cgroup %s has processes of another PID namespace, which are not visible here: stop them there, then retry", name)
}

// undoMount unmounts all mounts at or below a path, the deepest first.
func undoMount(c Change) error {
	mounts, err := mountsBelow(c.Name)
	if err != nil {
		return err
	}
	sort.SliceStable(mounts, func(i, j int) bool { return len(mounts[i].Mountpoint) > len(mounts[j].Mountpoint) })
	var errs []error
	for _, m := range mounts {
		err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", m.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

func undoRoute(c Change) error {
	dst, err := netlink.ParseIPNet(c.Name)
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(c.Before)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// The kernel only removes a route that matches the request in every attribute.
	routes, err := netlinkutil.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index},
			netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return err
	}
	for _, route := range routes {
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// undoLink removes a link. A name with a trailing "*" matches all links with that prefix.
func undoLink(c Change) error {
	prefix, many := strings.CutSuffix(c.Name, "*")
	if !many {
		return removeLink(c.Name)
	}
	links, err := netlinkutil.List(netlink.LinkList)
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range links {
		if strings.HasPrefix(link.Attrs().Name, prefix) {
			errs = append(errs, removeLink(link.Attrs().Name))
		}
	}
	return errors.Join(errs...)
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

func undoParameter(c Change) error {
	err := os.WriteFile(c.Path(), []byte(strings.TrimSpace(c.Before)+"\n"), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// undoDir removes a directory and its content, unless something is mounted below it: mounted
// filesystems are never deleted.
func undoDir(c Change) error {
	if !filepath.IsAbs(c.Name) || filepath.Clean(c.Name) == "/" {
		return errors.New("refusing to remove this path")
	}
	mounts, err := mountsBelow(c.Name)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted", mounts[0].Mountpoint)
	}
	return os.RemoveAll(c.Name)
}

// mountsBelow returns the mounts at or below a path. It resolves symlinks first, because the mount
// table contains resolved paths.
func mountsBelow(path string) ([]*mountinfo.Info, error) {
	real, err := layout.Resolve(path)
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	return mounts, nil
}

// RemoveTree removes a directory and its content, but never deletes mounted filesystems: if
// something is mounted below it, it fails and removes nothing. A directory that is a mount point
// itself, such as that of a dedicated disk, or the target of a symlink, is emptied but not removed.
func RemoveTree(dir string) error {
	real, err := layout.Resolve(dir)
	if err != nil {
		return err
	}
	mounts, err := mountsBelow(real)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Mountpoint != real {
			return fmt.Errorf("%s is still mounted", m.Mountpoint)
		}
	}
	link, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking %s: %w", dir, err)
	}
	if len(mounts) == 0 && link.Mode()&os.ModeSymlink == 0 {
		return undoDir(Change{Kind: Dir, Name: dir})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading mount point %s: %w", dir, err)
	}
	for _, e := range entries {
		// The filesystem creates this directory.
		if e.Name() == "lost+found" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
