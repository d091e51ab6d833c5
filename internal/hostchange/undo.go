package hostchange

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

	"hyperkube/internal/cgroup"
	"hyperkube/internal/layout"
	"hyperkube/internal/netdump"
)

// Undo takes back every change in the journal at path, and removes the journal
// once all are. It goes on after an error, and returns all of them: what was
// left can be tried again. Nobody may be writing to the journal.
func Undo(ctx context.Context, path string) error {
	changes, err := Read(path)
	if err != nil {
		return err
	}
	if err := Revert(ctx, changes); err != nil {
		return fmt.Errorf("taking back changes to the host: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the host change journal: %w", err)
	}
	return nil
}

// Revert takes back changes, the last ones of each kind first, whether they are there
// or not. It goes on after an error, and returns all of them.
func Revert(ctx context.Context, changes []Change) error {
	return revert(ctx, changes, cgroupPatience)
}

// cgroupPatience is how long a cgroup may take to be empty once what is in it was killed.
const cgroupPatience = 30 * time.Second

func revert(ctx context.Context, changes []Change, patience time.Duration) error {
	by := map[Kind][]Change{}
	for _, change := range slices.Backward(changes) {
		by[change.Kind] = append(by[change.Kind], change)
	}
	// Processes hold mounts, jumps hold chains, routes go with their links.
	var errs []error
	for _, one := range []struct {
		kind Kind
		undo func(context.Context, []Change) error
	}{
		{HostCgroup, undoCgroups(letOut(patience))}, {Cgroup, undoCgroups(killAll(patience))}, {Rule, undoRules}, {Chain, undoChains}, {Mount, each(undoMount)},
		{Route, each(undoRoute)}, {Link, each(undoLink)}, {Sysctl, each(undoParameter)}, {Module, each(undoParameter)}, {Dir, each(undoDir)},
	} {
		if list := by[one.kind]; len(list) > 0 {
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

// undoCgroups undoes one cgroup after the other.
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

// killAll kills what is in a cgroup and removes it.
func killAll(patience time.Duration) func(context.Context, *cgroup.Manager, string) error {
	return func(ctx context.Context, m *cgroup.Manager, name string) error {
		// It may be there in some hierarchies only, after an interruption.
		return errors.Join(m.Kill(name), removeCgroup(ctx, m, name, patience))
	}
}

// letOut lets what is in a cgroup go where it came from, and removes it.
func letOut(patience time.Duration) func(context.Context, *cgroup.Manager, string) error {
	return func(ctx context.Context, m *cgroup.Manager, name string) error {
		// Who is moved may have started somebody meanwhile.
		for {
			moved, err := m.Move(name, "/", func(int) bool { return true })
			if err != nil {
				return err
			}
			if moved == 0 || ctx.Err() != nil {
				break
			}
		}
		return removeCgroup(ctx, m, name, patience)
	}
}

// removeCgroup waits no longer than patience for what cannot be ended, as processes of
// another PID namespace or such as wait for a disk that never answers.
func removeCgroup(ctx context.Context, m *cgroup.Manager, name string, patience time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := m.Remove(waiting, name)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(err, occupied(m, name))
	}
	return err
}

// occupied says what keeps a cgroup from being removed, and what is to be done.
func occupied(m *cgroup.Manager, name string) error {
	pids, err := m.Pids(name)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("processes %s are still in cgroup %s, though they were killed: run this once more when they have ended",
			strings.Trim(fmt.Sprint(pids), "[]"), name)
	}
	return fmt.Errorf("cgroup %s has processes that cannot be seen from here, such as those of another PID namespace: end them there, and run this once more", name)
}

// undoMount unmounts what is at or below a path, the deepest first.
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
	// The kernel removes only what is like the request in every part.
	routes, err := netdump.Whole(func() ([]netlink.Route, error) {
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

// undoLink removes a link. A name that ends in "*" means all that begin so.
func undoLink(c Change) error {
	prefix, many := strings.CutSuffix(c.Name, "*")
	if !many {
		return removeLink(c.Name)
	}
	links, err := netdump.Whole(netlink.LinkList)
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

// undoDir removes a directory with all that is in it, unless something is still
// mounted there: that is never deleted into.
func undoDir(c Change) error {
	if !filepath.IsAbs(c.Name) || filepath.Clean(c.Name) == "/" {
		return errors.New("not removing it")
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

// mountsBelow are the mounts at or below a path, by whatever symlinks it leads
// there: the mount table has none.
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

// RemoveTree removes a directory with all that is in it, but never what is
// mounted in it: with a mount below, it fails and removes nothing. A directory that
// is a mount point itself, as of a disk of its own, or that a symlink leads to, is
// emptied and stays.
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
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if len(mounts) == 0 && link.Mode()&os.ModeSymlink == 0 {
		return undoDir(Change{Kind: Dir, Name: dir})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading what is mounted at %s: %w", dir, err)
	}
	for _, e := range entries {
		// A file system makes this one for itself.
		if e.Name() == "lost+found" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
