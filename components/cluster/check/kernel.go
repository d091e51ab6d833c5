package check

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"hyperkube/internal/host/packetfilter"
)

// kernelChecks returns the checks of features and modules of the kernel.
func kernelChecks() []check {
	return []check{
		{"kernel-version", checkKernelVersion},
		{"kernel-modules", checkModules},
		{"kernel-links", checkLinkTypes},
		{"kernel-packet-filter", checkPacketFilter},
		{"kernel-conntrack", checkConntrack},
		{"kernel-bridge-filter", checkBridgeFilter},
		{"apparmor", checkAppArmor},
	}
}

// minMajor and minMinor are the version of the oldest kernel that is supported.
const minMajor, minMinor = 5, 10

func checkKernelVersion(_ context.Context, m *Machine, o *outcome) {
	release := m.read("/proc/sys/kernel/osrelease")
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		o.skip("the version of the kernel is unknown")
		return
	}
	digits := func(s string) int {
		end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(s)
		}
		n, _ := strconv.Atoi(s[:end]) // 0 is older than any supported version
		return n
	}
	if major, minor := digits(parts[0]), digits(parts[1]); major < minMajor || major == minMajor && minor < minMinor {
		o.errorf("install a newer kernel and reboot", "Linux %s is older than %d.%d, so pods may not start", release, minMajor, minMinor)
	}
}

// checkModules detects that the modules of the running kernel have been removed, which an upgrade of the kernel does.
func checkModules(_ context.Context, m *Machine, o *outcome) {
	release := m.read("/proc/sys/kernel/osrelease")
	for _, dir := range []string{"/lib/modules", "/usr/lib/modules"} {
		if installed := m.names(dir); len(installed) > 0 && !slices.Contains(installed, release) {
			o.warnf("run `reboot`", "the running kernel is %s, but %s contains only the modules of %s, so no module can be loaded until the next boot", release, dir, strings.Join(installed, ", "))
			return
		}
	}
}

// checkLinkTypes creates a link of each type that pods need, in a temporary network namespace. That vxlan is not
// supported is only a warning.
func checkLinkTypes(_ context.Context, m *Machine, o *outcome) {
	unsupported, err := m.Probes.Links()
	if err != nil {
		o.errorf("if this is a container, start it with `--privileged`; otherwise use a kernel with network namespaces (CONFIG_NET_NS)", "a network namespace, which every pod needs, cannot be created: %v", err)
		return
	}
	for _, kind := range slices.Sorted(maps.Keys(unsupported)) {
		fix := "load the kernel module with `modprobe " + kind + "`; if it does not exist, install the modules of the running kernel (linux-modules-extra-$(uname -r) on Ubuntu)"
		if kind == "vxlan" {
			o.warnf(fix, "the kernel cannot create links of the type vxlan, which connect pods of nodes in different networks: %v", unsupported[kind])
			continue
		}
		o.errorf(fix, "the kernel cannot create links of the type %s, which pods need: %v", kind, unsupported[kind])
	}
}

// checkPacketFilter reads the rules, which fails if a table is not supported.
func checkPacketFilter(ctx context.Context, m *Machine, o *outcome) {
	if slices.ContainsFunc(m.Probes.Requirements(), isMissingProgram) {
		o.skip("a program is missing")
		return
	}
	if _, err := m.Probes.Rules(ctx, packetfilter.IPv4); err != nil && ctx.Err() == nil {
		o.errorf("load the kernel modules with `modprobe -a nf_tables nft_compat ip_tables iptable_nat`", "the packet filter rules, on which Services depend, cannot be read: %v", err)
	}
}

// checkConntrack checks that the table of connections exists while the cluster runs, and that it is not full.
func checkConntrack(_ context.Context, m *Machine, o *outcome) {
	limit, ok := m.number("/proc/sys/net/netfilter/nf_conntrack_max")
	if !ok {
		if m.Cluster.running() {
			o.errorf("load the kernel module with `modprobe nf_conntrack`", "the kernel does not track connections, so Services do not work")
		} else {
			o.skip("the cluster does not run")
		}
		return
	}
	count, _ := m.number("/proc/sys/net/netfilter/nf_conntrack_count") // 0 if unknown
	if limit > 0 && count >= limit/10*9 {
		o.errorf("raise the limit with `sysctl -w net.netfilter.nf_conntrack_max="+strconv.Itoa(4*limit)+"`, and `conntrack.min` in the KubeProxyConfiguration so that it stays",
			"the kernel tracks %d connections and drops new ones at %d", count, limit)
	}
}

// checkBridgeFilter checks that packets between pods of this node pass the rules of Services.
func checkBridgeFilter(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.running() {
		o.skip("the cluster does not run")
		return
	}
	const file = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	switch value, ok := m.number(file); {
	case !ok:
		o.errorf("load the kernel module with `modprobe br_netfilter`, then repeat `"+m.Cluster.Start+"`", "the kernel module br_netfilter is not loaded, so a pod does not reach Services whose endpoint is on the same node")
	case value == 0:
		o.errorf("run `sysctl -w net.bridge.bridge-nf-call-iptables=1` and remove the setting from /etc/sysctl.d", "net.bridge.bridge-nf-call-iptables is 0, so a pod does not reach Services whose endpoint is on the same node")
	}
}

// checkAppArmor checks that the default profile can be loaded if the kernel enforces AppArmor.
func checkAppArmor(_ context.Context, m *Machine, o *outcome) {
	if !strings.HasPrefix(m.read("/sys/module/apparmor/parameters/enabled"), "Y") {
		o.skip("the kernel does not enforce AppArmor")
		return
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if m.exists(dir + "/apparmor_parser") {
			return
		}
	}
	o.warnf("install the package apparmor, then restart the container runtime with `hyperkube down` and `"+m.Cluster.Start+"`", "the kernel enforces AppArmor, but apparmor_parser is not installed, so containers have no AppArmor profile")
}
