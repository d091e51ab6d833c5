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

// Functions contains the functions that revert changes of the kinds that belong to other packages,
// such as Rule and Chain. A function gets all changes of its kind, the last one first, whether they
// still exist or not. It continues after errors and returns all of them.
type Functions map[Kind]func(ctx context.Context, changes []Change) error

// Undo reverts every change in the journal at path, and then removes the journal. `hyperkube down`
// calls it. others reverts the changes of other packages. Undo continues after errors and returns
// all of them; the journal then remains, so that the caller can retry. No process may write to the
// journal.
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

// Revert reverts changes, whether they still exist or not, the last one of each kind first. others
// reverts the changes of other packages. Revert continues after errors and returns all of them. For
// most kinds it stops when ctx is done.
func Revert(ctx context.Context, changes []Change, others Functions) error {
	return revert(ctx, changes, others, cgroupTimeout)
}

// cgroupTimeout is the timeout for the processes of a cgroup to exit after they were killed.
const cgroupTimeout = 30 * time.Second

// revert implements Revert. timeout limits the waiting for the processes of each cgroup.
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
		{HostCgroup, undoCgroups(moveOut(timeout))}, {Cgroup, undoCgroups(killAll(timeout))}, {Controllers, undoControllers}, {Firewalld, others[Firewalld]}, {Rule, others[Rule]}, {Chain, others[Chain]}, {NFTables, others[NFTables]}, {Table, others[Table]}, {Mount, each(undoMount)},
		{Route, each(undoRoute)}, {Link, each(undoLink)}, {Sysctl, each(undoParameter)}, {Module, each(undoParameter)}, {Dir, each(undoDir)},
		{AppArmor, each(undoAppArmor)},
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

// each returns a function that calls undo for each change and returns all errors. It stops when ctx is done.
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

// undoCgroups returns a function that calls undo for each cgroup in changes and returns all errors.
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

// RecordControllers records the controllers that the root of the unified cgroup hierarchy enables for its children. With
// version 1 it records nothing.
func RecordControllers(j *Journal, groups *cgroup.Manager) error {
	enabled, err := groups.EnabledControllers()
	if err != nil || !groups.Unified() {
		return err
	}
	return j.Record(Change{Kind: Controllers, Name: "/", Before: enabled})
}

// undoControllers disables the controllers that were not enabled before the first change.
func undoControllers(_ context.Context, changes []Change) error {
	m, err := cgroup.Open()
	if err != nil {
		return err
	}
	return m.DisableControllers(changes[len(changes)-1].Before)
}

// killAll returns a function that kills the processes of the cgroup name and removes it. It waits
// for the processes to exit, at most for timeout.
func killAll(timeout time.Duration) func(context.Context, *cgroup.Manager, string) error {
	return func(ctx context.Context, m *cgroup.Manager, name string) error {
		// After an interruption it may exist in some hierarchies only.
		return errors.Join(m.Kill(name), removeCgroup(ctx, m, name, timeout))
	}
}

// moveOut returns a function that moves the processes of the cgroup name to the root cgroup and
// then removes the cgroup.
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

// removeCgroup removes the cgroup name and waits for its processes to exit. It waits at most for
// timeout, because some processes cannot be killed, such as those of another PID namespace or those
// that wait for a disk that does not respond. Its error then names these processes.
func removeCgroup(ctx context.Context, m *cgroup.Manager, name string, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := m.Remove(waiting, name)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(err, occupiedError(m, name))
	}
	return err
}

// occupiedError returns an error that describes which processes prevent the removal of the cgroup
// name, and what the operator must do.
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

// undoMount unmounts all mounts at or below the path of a Mount, the deepest first. Mounts that are in use are
// detached.
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

// undoRoute removes the routes to the destination of a Route over its link, or the one that makes it unreachable if the
// Route has no link. It is not an error if there are none.
func undoRoute(c Change) error {
	dst, err := netlink.ParseIPNet(c.Name)
	if err != nil {
		return err
	}
	if c.Before == "" {
		err := netlink.RouteDel(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE})
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
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

// undoLink removes the network link of a Link, or all links with a prefix if the name has a
// trailing "*".
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

// removeLink removes a network link, if it exists.
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

// isGone reports whether err means that a network link does not exist.
func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

// undoParameter restores the previous value of a Sysctl or Module. It does nothing if the parameter does not exist,
// because the module or link that it belongs to was removed.
func undoParameter(c Change) error {
	err := os.WriteFile(c.Path(), []byte(strings.TrimSpace(c.Before)+"\n"), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// undoDir removes the directory of a Dir and its content. It returns an error and removes nothing
// if something is mounted at or below it, because mounted filesystems must not be deleted.
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

// RemoveTree removes a directory and its content when a node is deleted. It never deletes mounted filesystems: if
// something is mounted below dir, it returns an error and removes nothing. A directory that is a mount point itself,
// such as that of a dedicated disk, or the target of a symlink, is emptied except for lost+found, but not removed. It
// is not an error if dir does not exist.
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
