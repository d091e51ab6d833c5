//go:build cgo

package main

import (
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCgroupsReadOnly verifies that a container cannot write to /sys/fs/cgroup itself, which on hosts with
// version 1 hierarchies is a tmpfs, and that a privileged container can.
func TestCgroupsReadOnly(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("cgroups", func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true }))
	dir := n.path("dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const refused = "mkdir: can't create directory '/sys/fs/cgroup/made': Read-only file system\n"
	for _, c := range []struct {
		name, want string
		change     func(*runtimeapi.ContainerConfig)
	}{
		{"default", refused, nil},
		{"read-only-root", refused, func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.ReadonlyRootfs = true }},
		// libcontainer makes the mounts of containers with propagation.
		{"propagation", refused, func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/dir", HostPath: dir, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}}
		}},
		{"privileged", "made\n", func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.Privileged = true }},
	} {
		script := "mkdir /sys/fs/cgroup/made 2>&1 && echo made && rmdir /sys/fs/cgroup/made; grep -q . /sys/fs/cgroup/*/cgroup.procs || echo unreadable"
		var change []func(*runtimeapi.ContainerConfig)
		if c.change != nil {
			change = append(change, c.change)
		}
		if got := n.output(pod, shell(c.name, script, change...)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	users := n.run(n.pod("cgroups-users", inUserNS(65536*7)))
	if got := n.output(users, shell("users", "mkdir /sys/fs/cgroup/made 2>&1")); got != refused {
		t.Errorf("with a user namespace: %q", got)
	}
}
