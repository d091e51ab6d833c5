package supportbundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/host/packetfilter"
)

// addJSON adds the JSON encoding of v.
func (c *collection) addJSON(name string, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		c.fail(fmt.Errorf("encoding %s: %w", name, err))
		return
	}
	c.add(name, append(data, '\n'))
}

// collectSummary adds the results of `check` and `status`, and the version.
func collectSummary(ctx context.Context, c *collection) error {
	c.addJSON("version.json", version.Get())
	c.addJSON("check.json", c.cfg.Check(ctx))
	c.addJSON("status.json", c.cfg.Status(ctx))
	return nil
}

// collectConfiguration adds the configuration files of the cluster and of the machine. Files with credentials only, such
// as keys, kubeconfigs and the encryption configuration, are left out.
func collectConfiguration(_ context.Context, c *collection) error {
	l := c.cfg.Layout
	files := []string{
		clusterconfig.File(l), clusterconfig.NodeFile(l), filepath.Join(l.Run, "config.json"), l.AuditPolicy(),
		l.ConfigFile("config.yaml"), l.ConfigFile("registries.yaml"), l.ConfigFile("handlers.yaml"), filepath.Join(l.Kubelet, "config.yaml"),
		"/etc/os-release", "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/etc/hosts", "/etc/fstab",
	}
	for _, pattern := range []string{
		l.ConfigFile("config.d/*.yaml"), l.ConfigFile("config.yaml.d/*.yaml"), filepath.Join(l.StaticPods(), "*.yaml"), filepath.Join(l.CNIConf(), "*"),
		filepath.Join(l.Data, "host-changes", "*.jsonl"), filepath.Join(l.Data, "*.json"), "/etc/systemd/system/hyperkube*.service", "/run/systemd/system/hyperkube*.service", "/etc/init.d/hyperkube*", "/etc/conf.d/hyperkube*",
		"/etc/sysctl.d/*.conf",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	seen := map[string]bool{}
	for _, file := range files {
		if !seen[file] {
			c.addFile("config", file, maxFileSize)
		}
		seen[file] = true
	}
	return nil
}

// collectNetwork adds the links, addresses, routes and neighbors.
func collectNetwork(_ context.Context, c *collection) error {
	links, err := netlinkutil.List(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	var text bytes.Buffer
	names := map[int]string{}
	for _, link := range links {
		a := link.Attrs()
		names[a.Index] = a.Name
		fmt.Fprintf(&text, "%d: %s type %s mtu %d state %s flags %s bridge %d mac %s\n", a.Index, a.Name, link.Type(), a.MTU, a.OperState, a.Flags, a.MasterIndex, a.HardwareAddr)
		addrs, err := netlinkutil.Addresses(link, netlink.FAMILY_ALL)
		c.fail(err)
		for _, addr := range addrs {
			fmt.Fprintf(&text, "    %s\n", addr.IPNet)
		}
	}
	c.add("network/links.txt", bytes.Clone(text.Bytes()))
	text.Reset()
	routes, err := netlinkutil.Routes(netlink.FAMILY_ALL)
	c.fail(err)
	for _, r := range routes {
		fmt.Fprintf(&text, "%s dev %s\n", r, names[r.LinkIndex])
	}
	c.add("network/routes.txt", bytes.Clone(text.Bytes()))
	text.Reset()
	rules, err := netlinkutil.List(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	c.fail(err)
	for _, r := range rules {
		fmt.Fprintln(&text, r)
	}
	c.add("network/rules.txt", text.Bytes())
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6", "snmp", "netstat", "dev"} {
		c.addFile("host", "/proc/thread-self/net/"+name, maxFileSize)
	}
	return nil
}

// collectRules adds the packet filter rules of all programs.
func collectRules(ctx context.Context, c *collection) error {
	var errs []error
	for family, name := range map[packetfilter.Family]string{packetfilter.IPv4: "iptables", packetfilter.IPv6: "ip6tables"} {
		saved, err := packetfilter.Save(ctx, family)
		errs = append(errs, err)
		c.add("network/"+name+".txt", []byte(saved))
	}
	c.addCommand(ctx, "network/nftables.txt", "nft", "list", "ruleset")
	return errors.Join(errs...)
}

// collectHost adds the state of the kernel.
func collectHost(_ context.Context, c *collection) error {
	for _, name := range []string{
		"version", "cmdline", "uptime", "loadavg", "meminfo", "cpuinfo", "swaps", "filesystems", "modules", "cgroups", "self/mountinfo", "self/cgroup",
		"self/limits", "diskstats", "stat", "vmstat", "pressure/cpu", "pressure/io", "pressure/memory", "locks",
	} {
		c.addFile("host", "/proc/"+name, maxFileSize)
	}
	return nil
}

// parameterDirs are the kernel parameters to collect, below /proc/sys.
var parameterDirs = []string{"kernel", "vm", "fs", "user", "net/core", "net/ipv4", "net/ipv6", "net/bridge", "net/netfilter"}

// excludedParameter matches parameters that are not read: keys of the kernel, and one whose reading waits for all CPUs.
var excludedParameter = regexp.MustCompile(`secret|key|/random/|stat_refresh`)

// collectParameters adds the kernel parameters, in the format of sysctl.
func collectParameters(ctx context.Context, c *collection) error {
	var text bytes.Buffer
	for _, dir := range parameterDirs {
		err := filepath.WalkDir(filepath.Join("/proc/sys", dir), func(name string, entry fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil || entry.IsDir() || excludedParameter.MatchString(name) {
				return nil
			}
			if value, err := os.ReadFile(name); err == nil { // some can only be written
				fmt.Fprintf(&text, "%s = %s\n", strings.ReplaceAll(strings.TrimPrefix(name, "/proc/sys/"), "/", "."), strings.TrimSpace(string(value)))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	c.add("host/sysctl.txt", text.Bytes())
	return nil
}

// cgroupFiles are the files of a cgroup to collect, those of version 2 and of version 1.
var cgroupFiles = []string{
	"cgroup.controllers", "cgroup.subtree_control", "cgroup.events", "memory.current", "memory.max", "memory.events", "cpu.max", "cpu.weight", "pids.current", "pids.max",
	"memory.usage_in_bytes", "memory.limit_in_bytes", "cpu.shares", "cpu.cfs_quota_us",
}

// collectCgroups adds the cgroups of pods and of the runtime, with their limits and usage.
func collectCgroups(ctx context.Context, c *collection) error {
	groups, err := cgroup.Open()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, root := range []string{c.cfg.Layout.CgroupRoot + "/kubepods", c.cfg.Layout.CgroupRoot + "/hyperkube-pods", "/hyperkube-pods.service"} {
		for _, dir := range groups.Dirs(root) {
			err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil || !entry.IsDir() {
					return nil
				}
				fmt.Fprintln(&text, name)
				for _, file := range cgroupFiles {
					if value, err := os.ReadFile(filepath.Join(name, file)); err == nil && len(value) > 0 {
						fmt.Fprintf(&text, "    %s: %s\n", file, strings.Join(strings.Fields(string(value)), " "))
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	c.add("host/cgroups.txt", text.Bytes())
	return nil
}

// collectProcesses adds the list of processes with their command lines.
func collectProcesses(ctx context.Context, c *collection) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	var text bytes.Buffer
	for _, e := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has exited
		}
		stat, _ := os.ReadFile(filepath.Join(dir, "stat")) // "" if it has exited
		fmt.Fprintf(&text, "%s\n    %s\n", strings.TrimSpace(string(stat)), bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '}))
	}
	c.add("host/processes.txt", text.Bytes())
	return nil
}
