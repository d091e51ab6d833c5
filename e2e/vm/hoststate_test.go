package vm

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// hostState contains what a machine looks like: the lines of output of each of stateCommands.
type hostState map[string][]string

// withSystemd is the begin of shell commands that print nothing without systemd. The files of OpenRC's services are among
// the files.
const withSystemd = "[ -d /run/systemd/system ] || exit 0; "

// stateCommands are shell commands that print the state of the machine that a cluster changes.
var stateCommands = map[string]string{
	"links":        "ip -o link | sed 's/qlen.*//'",
	"addresses":    "ip -o address | sed 's/valid_lft.*//'",
	"routes":       "{ ip route show table all; ip -6 route show table all; } | sed 's/expires [0-9]*sec//'",
	"rules":        "ip rule",
	"namespaces":   "ip netns",
	"mounts":       "awk '{print $5, $9, $10}' /proc/self/mountinfo | grep -v /proc/sys/fs/binfmt_misc",
	"cgroups":      "find /sys/fs/cgroup -type d",
	"controllers":  "tr ' ' '\\n' </sys/fs/cgroup/cgroup.subtree_control",
	"units":        withSystemd + "systemctl list-units --all --plain --no-legend | awk '{print $1, $2, $3}'",
	"unit files":   withSystemd + "systemctl list-unit-files --no-legend | awk '{print $1, $2}'",
	"failed units": withSystemd + "systemctl list-units --failed --plain --no-legend",
	"sysctls":      "sysctl -a 2>/dev/null | grep -E '^(net.(ipv4|ipv6|bridge|netfilter)|vm|kernel.(panic|pid_max|keys)|fs.(inotify|file-max|nr_open))'",
	"sockets":      "ss -Htulnp | awk '{print $1, $5, $7}' | sed 's/pid=[0-9]*,fd=[0-9]*//'",
	"apparmor":     "cat /sys/kernel/security/apparmor/profiles",
	"nftables":     "nft list ruleset | sed 's/counter packets [0-9]* bytes [0-9]*//'",
	"processes":    "ps --ppid 2 -p 2 --deselect -o comm=",
	"files":        "find /etc /usr/local /opt /root /run /var/lib /var/log -xdev -not -path '/var/log/journal/*' -not -path '/run/systemd/*' -not -path '/run/udev/*' -not -path '/run/log/*'",
}

// unsteady matches lines of the state that change without a cluster.
var unsteady = regexp.MustCompile(strings.Join([]string{
	`^session-|^user@|^user-|^run-user|^run-.*\.(service|scope)|^user\.slice`, // logins
	`^/sys/fs/cgroup/(user\.slice|init\.scope|proc-sys-fs-binfmt_misc\.mount)`, `^/run/user|^/run/sshd|^/run/utmp`,
	`^(ps|sh|sort|sed|awk|ssh|sshd.*|\(sd-pam\)|\(udev-worker\)|systemd|vm\.test|bash|agetty|login)$`,
	`^/root/(\.cache|\.kube|logs)`, `^/var/lib/(hyperkube-vm|systemd|private|dbus|apt|dpkg)|^/var/log/(lastlog|wtmp|btmp|private)|^/run/(lock|mount|motd|nologin)`,
	`kernel.random|nf_conntrack_count|ip_local_port|tcp_mem|udp_mem|tcp_fastopen|stable_secret|net.ipv4.tcp_.*cookie|rcu_|nlm_`,
	`^(systemd-tmpfiles|systemd-hostnamed|systemd-timedated|e2scrub|fstrim|dpkg-db-backup|logrotate|man-db|modprobe@|proc-sys-fs-binfmt|network-online\.target)`,
}, "|"))

// takeState returns the state of the machine. It loads the modules of the kernel that a cluster needs, which stay loaded
// after it, because their kernel parameters exist only then.
func (m *machine) takeState() hostState {
	m.Helper()
	m.run("modprobe", "-a", "nf_conntrack", "br_netfilter")
	h := hostState{}
	for name, command := range stateCommands {
		out, err := exec.Command("sh", "-c", command).Output()
		if err != nil && name != "nftables" && name != "apparmor" {
			m.Fatalf("%s: %v", command, err)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if line = strings.TrimSpace(line); line != "" && !unsteady.MatchString(line) {
				h[name] = append(h[name], line)
			}
		}
		slices.Sort(h[name])
	}
	return h
}

// diff returns the lines of after that h does not contain, and vice versa.
func (h hostState) diff(after hostState) []string {
	var out []string
	for name := range stateCommands {
		for _, line := range after[name] {
			if !slices.Contains(h[name], line) {
				out = append(out, name+": + "+line)
			}
		}
		for _, line := range h[name] {
			if !slices.Contains(after[name], line) {
				out = append(out, name+": - "+line)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// restored fails the test if the machine does not return to the state before.
func (m *machine) restored(before hostState) {
	m.Helper()
	m.eventually("the host's state before the test", func() error {
		if diff := before.diff(m.takeState()); len(diff) > 0 {
			return fmt.Errorf("the host differs:\n%s", strings.Join(diff, "\n"))
		}
		return nil
	})
}
