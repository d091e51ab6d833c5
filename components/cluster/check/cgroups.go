package check

import (
	"bytes"
	"context"
	"io/fs"
	"slices"
	"strings"

	"hyperkube/internal/host/cgroup"
)

// cgroupChecks returns the checks of control groups.
func cgroupChecks() []check {
	return []check{{"cgroup-hierarchy", checkHierarchy}, {"cgroup-controllers", checkControllers}}
}

// openCgroups returns the cgroup hierarchies in the mount table of the machine.
func openCgroups(m *Machine) (*cgroup.Manager, error) {
	table, err := fs.ReadFile(m.Files, "proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return cgroup.OpenTable(bytes.NewReader(table))
}

// checkHierarchy checks that a cgroup hierarchy is mounted and writable.
func checkHierarchy(_ context.Context, m *Machine, o *outcome) {
	if _, err := openCgroups(m); err != nil {
		o.errorf("mount the hierarchy with `mount -t cgroup2 none /sys/fs/cgroup`", "no pod can start without control groups: %v", err)
		return
	}
	mounts, err := m.mounts()
	if err != nil {
		o.skip("the mount table cannot be read")
		return
	}
	for _, mount := range mounts {
		isCgroup := mount.FSType == "cgroup2" || mount.FSType == "cgroup"
		if isCgroup && slices.Contains(strings.Split(mount.Options, ","), "ro") {
			o.errorf("run `mount -o remount,rw "+mount.Mountpoint+"`; if this is a container, start it with `--privileged`", "the cgroup hierarchy %s is mounted read-only, so no pod can start", mount.Mountpoint)
			return
		}
	}
}

// requiredControllers are the controllers without which the kubelet does not run. Without the usefulControllers, only
// some resources are not limited.
var (
	requiredControllers = []string{"cpu", "memory", "pids"}
	usefulControllers   = []string{"cpuset"}
)

// checkControllers checks that the controllers exist and are available to the cgroups of pods. A missing one is an
// error if pods cannot start without it, and otherwise a warning.
func checkControllers(_ context.Context, m *Machine, o *outcome) {
	groups, err := openCgroups(m)
	if err != nil {
		o.skip("there is no cgroup hierarchy")
		return
	}
	have := groups.Controllers()
	for _, name := range slices.Concat(requiredControllers, usefulControllers) {
		if slices.Contains(have, name) {
			continue
		}
		report, effect := o.errorf, "no pod can start"
		if slices.Contains(usefulControllers, name) {
			report, effect = o.warnf, "the resource is not limited"
		}
		switch state, known := controllerState(m.read("/proc/cgroups"), name); {
		case known && state == "0":
			report("add `cgroup_enable="+name+"` to the command line of the kernel, remove `cgroup_disable="+name+"` from it, and reboot", "the cgroup controller %s is disabled in the kernel, so %s", name, effect)
		case groups.Unified():
			report("if hyperkube runs in a container or a systemd unit, start the container with `--privileged --cgroupns=private`, or set `Delegate=yes` in the unit", "the cgroup controller %s is not delegated to the cgroup of this system, so %s", name, effect)
		default:
			report("mount it with `mkdir -p /sys/fs/cgroup/"+name+" && mount -t cgroup -o "+name+" none /sys/fs/cgroup/"+name+"`", "the cgroup controller %s is not mounted, so %s", name, effect)
		}
	}
}

// controllerState returns whether a controller is enabled in the kernel, "1" or "0", from the content of /proc/cgroups.
// known is false if the kernel does not list it.
func controllerState(table, name string) (state string, known bool) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[0] == name {
			return fields[3], true
		}
	}
	return "", false
}
