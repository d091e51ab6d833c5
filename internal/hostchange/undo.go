package hostchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/cgroup"
)

// Undo takes back every change in the journal at path, and removes the journal
// once all are. It goes on after an error, and returns all of them: what was
// left can be tried again. Nobody may be writing to the journal.
func Undo(ctx context.Context, path string) error {
	changes, err := Read(path)
	if err != nil {
		return err
	}
	by := map[Kind][]Change{}
	for i := len(changes) - 1; i >= 0; i-- {
		by[changes[i].Kind] = append(by[changes[i].Kind], changes[i])
	}
	// Processes hold mounts, jumps hold chains, routes go with their links.
	var errs []error
	for _, one := range []struct {
		kind Kind
		undo func(context.Context, []Change) error
	}{
		{Cgroup, undoCgroups}, {Rule, undoRules}, {Chain, undoChains}, {Mount, each(undoMount)},
		{Route, each(undoRoute)}, {Link, each(undoLink)}, {Sysctl, each(undoSysctl)}, {Dir, each(undoDir)},
	} {
		if list := by[one.kind]; len(list) > 0 {
			if err := one.undo(ctx, list); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("taking back changes to the host: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the host change journal: %w", err)
	}
	return nil
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

// undoCgroups kills what is in the cgroups and removes them.
func undoCgroups(ctx context.Context, changes []Change) error {
	m, err := cgroup.Open()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range changes {
		// It may be there in some hierarchies only, after an interruption.
		if err := m.Kill(c.Name); err != nil {
			errs = append(errs, err)
		}
		if err := m.Remove(ctx, c.Name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tables returns go-iptables for the family of a change, and its three words.
func tables(c Change) (tool *iptables.IPTables, family, table, chain string, err error) {
	words := strings.Fields(c.Name)
	if len(words) != 3 {
		return nil, "", "", "", fmt.Errorf("%q is no chain of a table", c.Name)
	}
	protocol := iptables.ProtocolIPv4
	if words[0] == "6" {
		protocol = iptables.ProtocolIPv6
	}
	tool, err = iptables.New(iptables.IPFamily(protocol), iptables.Timeout(10))
	if err != nil {
		return nil, "", "", "", fmt.Errorf("looking for iptables: %w", err)
	}
	return tool, words[0], words[1], words[2], nil
}

func undoRules(_ context.Context, changes []Change) error {
	var errs []error
	for _, c := range changes {
		tool, _, table, chain, err := tables(c)
		if err == nil {
			err = deleteRule(tool, table, chain, c.Args)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rule in %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// deleteRule removes a rule as often as it is there. That the chain it jumps to
// is gone makes iptables fail to look for it: it is not there then.
func deleteRule(tool *iptables.IPTables, table, chain string, rule []string) error {
	for {
		there, err := tool.Exists(table, chain, rule...)
		if err != nil {
			var failed *iptables.Error
			if errors.As(err, &failed) && (failed.IsNotExist() || failed.ExitStatus() == 2) {
				return nil
			}
			return err
		}
		if !there {
			return nil
		}
		if err := tool.Delete(table, chain, rule...); err != nil {
			return err
		}
	}
}

// undoChains removes chains. A name that ends in "*" means all that begin so.
// All of a table go at one instant, for they lead to each other.
func undoChains(ctx context.Context, changes []Change) error {
	wanted := map[string]map[string][]string{} // family, table, patterns
	for _, c := range changes {
		words := strings.Fields(c.Name)
		if len(words) != 3 {
			return fmt.Errorf("%q is no chain of a table", c.Name)
		}
		if wanted[words[0]] == nil {
			wanted[words[0]] = map[string][]string{}
		}
		wanted[words[0]][words[1]] = append(wanted[words[0]][words[1]], words[2])
	}
	var errs []error
	for family, byTable := range wanted {
		command := "iptables"
		if family == "6" {
			command = "ip6tables"
		}
		saved, err := exec.CommandContext(ctx, command+"-save").Output()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s-save: %w", command, err))
			continue
		}
		input := removal(string(saved), byTable)
		if input == "" {
			continue
		}
		restore := exec.CommandContext(ctx, command+"-restore", "-w", "10", "--noflush")
		restore.Stdin = strings.NewReader(input)
		var said bytes.Buffer
		restore.Stderr = &said
		if err := restore.Run(); err != nil {
			errs = append(errs, fmt.Errorf("%s-restore: %w: %s", command, err, strings.TrimSpace(said.String())))
		}
	}
	return errors.Join(errs...)
}

// removal is the input of iptables-restore that removes the chains which match
// from what iptables-save told.
func removal(saved string, byTable map[string][]string) string {
	var out strings.Builder
	var table string
	var chains []string
	finish := func() {
		if len(chains) == 0 {
			return
		}
		out.WriteString("*" + table + "\n")
		for _, chain := range chains {
			out.WriteString(":" + chain + " - [0:0]\n")
		}
		for _, chain := range chains {
			out.WriteString("-X " + chain + "\n")
		}
		out.WriteString("COMMIT\n")
		chains = nil
	}
	for _, line := range strings.Split(saved, "\n") {
		switch {
		case strings.HasPrefix(line, "*"):
			finish()
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			chain, _, _ := strings.Cut(line[1:], " ")
			for _, pattern := range byTable[table] {
				prefix, many := strings.CutSuffix(pattern, "*")
				if chain == pattern || many && strings.HasPrefix(chain, prefix) {
					chains = append(chains, chain)
					break
				}
			}
		}
	}
	finish()
	return out.String()
}

// undoMount unmounts what is at or below a path, the deepest first.
func undoMount(c Change) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(c.Name))
	if err != nil {
		return fmt.Errorf("listing mounts: %w", err)
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
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index},
		netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
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
	links, err := netlink.LinkList()
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

func undoSysctl(c Change) error {
	path := filepath.Join("/proc/sys", filepath.Clean("/"+c.Name))
	err := os.WriteFile(path, []byte(strings.TrimSpace(c.Before)+"\n"), 0o644)
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
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(c.Name))
	if err != nil {
		return fmt.Errorf("listing mounts: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted", mounts[0].Mountpoint)
	}
	return os.RemoveAll(c.Name)
}

// RemoveTree removes a directory with all that is in it, but never what is
// mounted in it: with a mount below, it fails and removes nothing. A directory that
// is a mount point itself, as of a disk of its own, is emptied and stays.
func RemoveTree(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("listing mounts: %w", err)
	}
	for _, m := range mounts {
		if m.Mountpoint != filepath.Clean(dir) {
			return fmt.Errorf("%s is still mounted", m.Mountpoint)
		}
	}
	if len(mounts) == 0 {
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
