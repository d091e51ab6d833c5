package check

import (
	"context"
	"strconv"
	"strings"
)

// parameterChecks returns the checks of kernel parameters and of the limits that they set.
func parameterChecks() []check {
	return []check{
		{"ip-forward", checkForwarding},
		{"ip-forward-files", checkForwardingFiles},
		{"rp-filter", checkReversePath},
		{"inotify", checkInotify},
		{"open-files", checkOpenFiles},
		{"threads", checkThreads},
	}
}

// forwarding returns the kernel parameters that enable IP forwarding for the IP families of the cluster's pods.
// Without a cluster, it returns that of IPv4.
func (c *Cluster) forwarding() []string {
	var out []string
	for _, cidr := range c.Config.PodCIDRs {
		if strings.Contains(cidr, ":") {
			out = append(out, "net.ipv6.conf.all.forwarding")
		} else {
			out = append(out, "net.ipv4.ip_forward")
		}
	}
	if len(out) == 0 {
		out = []string{"net.ipv4.ip_forward"}
	}
	return out
}

// parameterFile returns the file of a kernel parameter.
func parameterFile(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// checkForwarding checks that the kernel forwards packets of pods. `up` enables that, so it is an error only while the
// cluster runs.
func checkForwarding(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.running() {
		o.skip("the cluster does not run")
		return
	}
	for _, name := range m.Cluster.forwarding() {
		if value, ok := m.number(parameterFile(name)); ok && value == 0 {
			o.errorf("run `sysctl -w "+name+"=1`", "%s is 0, so pods do not reach other machines, and other machines do not reach pods", name)
		}
	}
}

// parameterDirs are the directories of files with kernel parameters, see sysctl.d(5).
var parameterDirs = []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"}

// checkForwardingFiles finds configuration files that disable forwarding when they are applied, for example when a
// package is installed.
func checkForwardingFiles(_ context.Context, m *Machine, o *outcome) {
	files := []string{"/etc/sysctl.conf"}
	for _, dir := range parameterDirs {
		for _, name := range m.names(dir) {
			if strings.HasSuffix(name, ".conf") {
				files = append(files, dir+"/"+name)
			}
		}
	}
	for _, file := range files {
		for line := range strings.Lines(m.read(file)) {
			name, value, found := strings.Cut(line, "=")
			name = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(name), "-"), "/", ".")
			for _, want := range m.Cluster.forwarding() {
				if found && name == want && strings.TrimSpace(value) == "0" {
					o.warnf("remove the line from "+file, "%s sets %s to 0, so the next `sysctl --system` disconnects pods from other machines", file, name)
				}
			}
		}
	}
}

// checkReversePath checks that the kernel does not drop packets that arrive from pods of other nodes through a tunnel.
func checkReversePath(_ context.Context, m *Machine, o *outcome) {
	link := m.Layout.Tunnel()
	if m.Network.link(link) == nil {
		o.skip("there is no tunnel to other nodes")
		return
	}
	all, _ := m.number("/proc/sys/net/ipv4/conf/all/rp_filter") // 0 if unknown
	own, _ := m.number("/proc/sys/net/ipv4/conf/" + link + "/rp_filter")
	const strict = 1
	if max(all, own) == strict {
		o.warnf("run `sysctl -w net.ipv4.conf."+link+".rp_filter=2`", "the kernel filters packets of %s by strict reverse paths, so packets from machines with several addresses may be dropped", link)
	}
}

// Kernel parameters with smaller values are a finding, because a node with its default number of pods exhausts them.
const (
	minInotifyInstances = 128
	minInotifyWatches   = 8192
	minOpenFiles        = 65536
)

func checkInotify(_ context.Context, m *Machine, o *outcome) {
	const instances, watches = "fs.inotify.max_user_instances", "fs.inotify.max_user_watches"
	fix := "run `sysctl -w " + instances + "=8192 " + watches + "=524288`, and write the same to a file in /etc/sysctl.d so that it stays"
	if err := m.Probes.Inotify(); err != nil {
		o.errorf(fix, "no inotify instance can be created, so the kubelet does not detect static pods, and many programs in pods fail: %v", err)
		return
	}
	for _, limit := range []struct {
		name string
		min  int
	}{{instances, minInotifyInstances}, {watches, minInotifyWatches}} {
		if n, ok := m.number(parameterFile(limit.name)); ok && n < limit.min {
			o.warnf(fix, "%s is only %d, so programs in pods that watch files may fail", limit.name, n)
		}
	}
}

func checkOpenFiles(_ context.Context, m *Machine, o *outcome) {
	// The fields of file-nr are the allocated, the unused and the maximum number.
	fields := strings.Fields(m.read("/proc/sys/fs/file-nr"))
	if len(fields) != 3 {
		o.skip("the number of open files is unknown")
		return
	}
	open, _ := strconv.ParseUint(fields[0], 10, 64) // 0 if malformed
	limit, err := strconv.ParseUint(fields[2], 10, 64)
	const fix = "run `sysctl -w fs.file-max=1000000`, and write the same to a file in /etc/sysctl.d so that it stays"
	switch {
	case err != nil:
	case open >= limit/10*9:
		o.errorf(fix, "%d files are open, and the kernel allows only %d", open, limit)
	case limit < minOpenFiles:
		o.warnf(fix, "fs.file-max is only %d", limit)
	}
}

// checkThreads checks that there are free process IDs.
func checkThreads(_ context.Context, m *Machine, o *outcome) {
	// The fourth field of loadavg is the number of running and of all threads.
	fields := strings.Fields(m.read("/proc/loadavg"))
	if len(fields) < 4 {
		o.skip("the number of threads is unknown")
		return
	}
	_, text, _ := strings.Cut(fields[3], "/")
	count, err := strconv.Atoi(text)
	if err != nil {
		o.skip("the number of threads is unknown")
		return
	}
	for _, name := range []string{"kernel.pid_max", "kernel.threads-max"} {
		if limit, ok := m.number(parameterFile(name)); ok && count >= limit/10*9 {
			o.errorf("find the process with `ps -eLf`, or run `sysctl -w "+name+"="+strconv.Itoa(4*limit)+"`", "%d threads run, and %s allows only %d, so no process can start", count, name, limit)
		}
	}
}
