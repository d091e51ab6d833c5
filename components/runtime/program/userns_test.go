//go:build cgo

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mapping(from, length uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: from, Length: length}}
}

// inUserNS configures a user namespace that starts at the given host ID.
func inUserNS(from uint32) func(*runtimeapi.PodSandboxConfig) {
	return func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
			Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(from, 65536), Gids: mapping(from, 65536)}
	}
}

func TestUserNamespaces(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	status, err := n.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !status.RuntimeHandlers[0].Features.UserNamespaces {
		t.Skip("this kernel cannot do it")
	}
	const first = 65536 * 7
	host := n.path("volume")
	if err := os.Mkdir(host, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, share := range []bool{false, true} {
		name := map[bool]string{false: "apart", true: "shared"}[share]
		pod := n.run(n.pod("users-"+name, inUserNS(first), func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "7", "kernel.shm_rmid_forced": "1"}
			if share {
				c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			}
		}))
		for i, c := range []struct {
			name, script, want string
			change             func(*runtimeapi.ContainerConfig)
		}{
			{"map", "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '", " 0 458752 65536\n 0 458752 65536\n", nil},
			{"root", "ls -ldn / /bin /etc/hosts /etc/resolv.conf /dev/shm | awk '{print $3, $4}' | sort -u", "0 0\n", nil},
			{"writes", "echo x > /new && chown 1000:1000 /new && mkdir /tmp/d && rm -r /bin/again && ls -ln /new | awk '{print $3}'", "1000\n", nil},
			{"volume", "id -u; touch /m/of-pod && ls -ln /m/of-pod | awk '{print $3}'; touch /ro/x 2>&1", "0\n0\ntouch: /ro/x: Read-only file system\n", func(c *runtimeapi.ContainerConfig) {
				c.Mounts = []*runtimeapi.Mount{
					{ContainerPath: "/m", HostPath: host, UidMappings: mapping(first, 65536), GidMappings: mapping(first, 65536)},
					{ContainerPath: "/ro", HostPath: host, Readonly: true, UidMappings: mapping(first, 65536), GidMappings: mapping(first, 65536)},
				}
			}},
			{"unmapped volume", "touch /m/x 2>&1", "touch: /m/x: Permission denied\n", func(c *runtimeapi.ContainerConfig) {
				c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: host}}
			}},
			{"image volume", "cat /vol/old/new; ls -ln /vol/old/new | awk '{print $3}'; ls -ldn /sub | awk '{print $3}'", "new0\n0\n", func(c *runtimeapi.ContainerConfig) {
				c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/vol", Image: &runtimeapi.ImageSpec{Image: "busybox"}, Readonly: true},
					{ContainerPath: "/sub", Image: &runtimeapi.ImageSpec{Image: "busybox"}, ImageSubPath: "old", Readonly: true}}
			}},
			{"devices", "head -c 1 /dev/zz | wc -c; head -c 1 /dev/kmsg >/dev/null 2>&1; echo x > /dev/null && head -c 2 /dev/zero | wc -c", "1\n2\n", func(c *runtimeapi.ContainerConfig) {
				c.Devices = []*runtimeapi.Device{{ContainerPath: "/dev/zz", HostPath: "/dev/zero", Permissions: "r"}, {ContainerPath: "/dev/kmsg", HostPath: "/dev/kmsg", Permissions: "r"}}
			}},
			{"user", "id -u; id -G; touch /tmp/mine; touch /x 2>&1", "1000\n1001 1002\ntouch: /x: Permission denied\n", func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
			}},
			{"sysctls and hostname", "sysctl -n net.ipv4.ip_unprivileged_port_start kernel.shm_rmid_forced; hostname", "7\n1\nusers-" + name + "\n", nil},
			{"capabilities", "mount -t tmpfs x /tmp && ip link set lo down && echo can", "can\n", func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN", "NET_ADMIN"}}
			}},
		} {
			if c.change == nil {
				c.change = func(*runtimeapi.ContainerConfig) {}
			}
			if share {
				inner := c.change
				c.change = func(c *runtimeapi.ContainerConfig) {
					c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
					inner(c)
				}
			}
			if got := n.output(pod, shell("c"+string(rune('a'+i)), c.script, c.change)); got != c.want {
				t.Errorf("%s, %s: got %q, want %q", name, c.name, got, c.want)
			}
		}
		// Files that the pod's root creates in a volume belong to root on the host, not to an ID of
		// the pod's range.
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(host, "of-pod"), &st); err != nil || st.Uid != 0 {
			t.Errorf("the volume's file belongs to %d, %v", st.Uid, err)
		}
		id := n.startContainer(pod, shell("long", "sleep 1000", func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = map[bool]runtimeapi.NamespaceMode{false: runtimeapi.NamespaceMode_CONTAINER, true: runtimeapi.NamespaceMode_POD}[share]
		}))
		if share {
			continue
		}
		// Also after a restart of the runtime.
		n.stop(9)
		n.start()
		out, err := n.exec(id, 60, "sh", "-c", "id -u; awk '{print $2}' /proc/self/uid_map")
		if err != nil || string(out.Stdout) != "0\n458752\n" {
			t.Errorf("exec: %v, %v", out, err)
		}
		var info strings.Builder
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range resp.Info {
			info.WriteString(v)
		}
		if s, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod}); err != nil ||
			s.Status.Linux.Namespaces.Options.UsernsOptions.GetMode() != runtimeapi.NamespaceMode_POD {
			t.Errorf("the sandbox is %v, %v", s, err)
		}
	}
	for name, o := range map[string]*runtimeapi.UserNamespace{
		"two mappings": {Mode: runtimeapi.NamespaceMode_POD, Uids: append(mapping(1000, 10), mapping(2000, 10)...), Gids: mapping(1000, 10)},
		"not from root": {Mode: runtimeapi.NamespaceMode_POD, Uids: []*runtimeapi.IDMapping{{ContainerId: 1, HostId: 1000, Length: 10}},
			Gids: mapping(1000, 10)},
		"no mapping":   {Mode: runtimeapi.NamespaceMode_POD},
		"uneven":       {Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(1000, 10), Gids: mapping(1000, 11)},
		"too far":      {Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(1<<32-5, 10), Gids: mapping(1000, 10)},
		"of container": {Mode: runtimeapi.NamespaceMode_CONTAINER},
		"of target":    {Mode: runtimeapi.NamespaceMode_TARGET},
	} {
		_, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("bad", func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = o
		})})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
