package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// host contains the properties of a machine that a cluster changes.
type host map[string][]string

// snapshotHost returns links, routes, mounts, iptables rules, cgroups, processes, kernel parameters
// and directories.
func snapshotHost() (host, error) {
	h := host{}
	for name, command := range map[string][]string{
		"links":      {"ip", "-o", "link"},
		"addresses":  {"ip", "-o", "addr"},
		"routes":     {"ip", "route", "show", "table", "all"},
		"iptables":   {"iptables-save"},
		"ip6tables":  {"ip6tables-save"},
		"namespaces": {"ip", "netns", "list"},
	} {
		out, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if line = steady(name, line); line != "" {
				h[name] = append(h[name], line)
			}
		}
	}
	var err error
	if h["mounts"], err = mountPoints(); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(cgroupRoot, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			h["cgroups"] = append(h["cgroups"], path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range processes {
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		_, of, marked := strings.Cut("\x00"+string(environ), "\x00"+markEnv+"=")
		if !marked {
			continue
		}
		of, _, _ = strings.Cut(of, "\x00")
		if data, _ := os.ReadFile(path); len(data) > 0 { // otherwise it has just exited
			h["processes"] = append(h["processes"], of+": "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	for _, name := range []string{
		"net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "net/bridge/bridge-nf-call-iptables",
		"net/bridge/bridge-nf-call-ip6tables", "net/ipv4/conf/all/forwarding", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter", "kernel/panic", "vm/overcommit_memory",
		"kernel/panic_on_oops", "fs/inotify/max_user_instances", "net/netfilter/nf_conntrack_max",
	} {
		data, err := os.ReadFile("/proc/sys/" + name)
		if err == nil {
			h["sysctls"] = append(h["sysctls"], name+" = "+strings.TrimSpace(string(data)))
		}
	}
	for _, dir := range []string{"/var/lib/hyperkube", "/var/lib/kubelet", "/run/hyperkube", "/var/log/pods", "/var/log/containers", "/etc/kubernetes"} {
		if _, err := os.Stat(dir); err == nil {
			h["directories"] = append(h["directories"], dir)
		}
	}
	for name := range h {
		slices.Sort(h[name])
	}
	return h, nil
}

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

// steady removes the parts of a line that change independently. It returns "" if nothing remains.
// Empty base chains exist after the first use of iptables.
func steady(name, line string) string {
	switch name {
	case "iptables", "ip6tables":
		line = counters.ReplaceAllString(line, "")
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "*") || line == "COMMIT" ||
			strings.HasPrefix(line, ":") && strings.Contains(line, " ACCEPT") {
			return ""
		}
	case "addresses":
		line, _, _ = strings.Cut(line, "valid_lft")
	}
	return strings.TrimSpace(line)
}

// diff returns the differences between h and after, or "".
func (h host) diff(after host) string {
	var out strings.Builder
	names := map[string]bool{}
	for name := range h {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	for name := range names {
		for _, line := range after[name] {
			if !slices.Contains(h[name], line) {
				fmt.Fprintf(&out, "%s: + %s\n", name, line)
			}
		}
		for _, line := range h[name] {
			if !slices.Contains(after[name], line) {
				fmt.Fprintf(&out, "%s: - %s\n", name, line)
			}
		}
	}
	return out.String()
}
