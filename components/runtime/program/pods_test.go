//go:build cgo

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestContainers(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("secure", func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Privileged = true
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "7", "kernel.shm_rmid_forced": "1"}
	}))
	type config = runtimeapi.ContainerConfig
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "file"), []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name, script, want string
		change             func(*config)
	}{
		{"default capabilities", "grep CapEff /proc/self/status", "CapEff:\t00000000a80425fb\n", nil},
		{"added and dropped", "grep CapEff /proc/self/status", "CapEff:\t0000000000001001\n", func(c *config) {
			c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_ADMIN", "CHOWN"}}
		}},
		{"user without capabilities", "grep CapEff /proc/self/status; id -u; id -g", "CapEff:\t0000000000000000\n4711\n0\n", func(c *config) {
			c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 4711}
		}},
		{"groups", "id -u; id -g; id -G", "1000\n5\n5 9 1002\n", func(c *config) {
			c.Linux.SecurityContext.RunAsUsername = "user"
			c.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 5}
			c.Linux.SecurityContext.SupplementalGroups = []int64{9}
		}},
		{"strict groups", "id -G", "1001 9\n", func(c *config) {
			c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
			c.Linux.SecurityContext.SupplementalGroups = []int64{9}
			c.Linux.SecurityContext.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		}},
		{"no new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n", func(c *config) { c.Linux.SecurityContext.NoNewPrivs = true }},
		{"seccomp", "grep Seccomp: /proc/self/status; unshare -U true 2>&1 | grep -o 'not permitted'", "Seccomp:\t2\nnot permitted\n", func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		}},
		{"no seccomp", "grep Seccomp: /proc/self/status", "Seccomp:\t0\n", func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		}},
		{"read-only root", "touch /x 2>&1; touch /dev/shm/x && echo shm", "touch: /x: Read-only file system\nshm\n", func(c *config) { c.Linux.SecurityContext.ReadonlyRootfs = true }},
		{"masked and protected paths", "exec 2>&1; wc -c < /proc/version; echo 1 2>&1 > /proc/sys/kernel/printk || true", "0\n/bin/sh: can't create /proc/sys/kernel/printk: Read-only file system\n", nil},
		{"privileged", "test $(ls /dev | wc -l) -gt 20 && mount -t tmpfs x /tmp && echo mounted; test -w /sys/kernel && echo sys", "mounted\nsys\n", func(c *config) { c.Linux.SecurityContext.Privileged = true }},
		{"mounts", "cat /m/file; touch /ro/x 2>&1; echo new > /m/new", "of the hosttouch: /ro/x: Read-only file system\n", func(c *config) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: host}, {ContainerPath: "/ro", HostPath: host, Readonly: true}}
		}},
		{"missing source", "ls -d /m/", "/m/\n", func(c *config) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: filepath.Join(host, "made")}}
		}},
		{"a device", "head -c 1 /dev/zz | wc -c", "1\n", func(c *config) {
			c.Devices = []*runtimeapi.Device{{ContainerPath: "/dev/zz", HostPath: "/dev/zero", Permissions: "r"}}
		}},
		{"sysctls", "sysctl -n net.ipv4.ip_unprivileged_port_start kernel.shm_rmid_forced", "7\n1\n", nil},
		{"image volume", "cat /vol/new; touch /vol/x 2>&1", "newtouch: /vol/x: Read-only file system\n", func(c *config) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/vol", Image: &runtimeapi.ImageSpec{Image: "busybox"}, ImageSubPath: "old", Readonly: true}}
		}},
		{"private PID namespace", "echo $$; ls /proc | grep -c '^[0-9]'", "1\n", func(c *config) { c.Command[2] = "echo $$" }},
		{"many arguments", "x", "a b\n", func(c *config) { c.Command, c.Args = []string{"echo"}, []string{"a", "b"} }},
		{"standard devices", "exec 2>&1; echo out > /dev/stdout; echo err > /dev/stderr; test -c /dev/null && echo null", "out\nerr\nnull\n", func(c *config) {
			c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
		}},
	} {
		if c.change == nil {
			c.change = func(*config) {}
		}
		if c.name == "seccomp" && !hasSeccomp {
			t.Log("seccomp is not tested: this test was built without its tag")
			continue
		}
		if got := n.output(pod, shell(fmt.Sprint("c", i), c.script, c.change)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(host, "new")); err != nil || string(data) != "new\n" {
		t.Errorf("the host sees %q, %v", data, err)
	}
	for name, c := range map[string]struct {
		change func(*config)
		want   string
	}{
		"no command":   {func(c *config) { c.Command = []string{"/no/such"} }, "no such file or directory"},
		"no such user": {func(c *config) { c.Linux.SecurityContext.RunAsUsername = "no-such-user" }, "no matching entries in passwd file"},
		"unknown capability": {func(c *config) {
			c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}}
		}, "unknown capability"},
		"no image":  {func(c *config) { c.Image.Image = "nothing" }, "not found"},
		"no device": {func(c *config) { c.Devices = []*runtimeapi.Device{{HostPath: "/dev/none", ContainerPath: "/dev/none"}} }, "no such file"},
		"no profile": {func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/none"}
		}, "cannot load seccomp profile"},
	} {
		id, err := n.create(pod, shell("bad", "true", c.change))
		if err == nil {
			_, err = n.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id})
			if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 128 || st.Reason != "StartError" {
				t.Errorf("%s: it is %v", name, st)
			}
			if _, err := n.RemoveContainer(context.Background(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPods(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	t.Run("shared PID namespace", func(t *testing.T) {
		pod := n.run(n.pod("shared", func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}))
		share := func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}
		a := n.startContainer(pod, shell("a", "sleep 1000 & sleep 1000", share))
		if got := n.output(pod, shell("b", "ps | grep -c '[s]leep 1000'; ps | grep -q /pause && echo pause; ls /proc/1/root/ 2>&1", func(c *runtimeapi.ContainerConfig) {
			share(c)
			c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		})); got != "2\npause\n" && got != "3\npause\n" {
			t.Errorf("it sees %q", got)
		}
		pid := n.pidOf(a)
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a, Timeout: 0}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(fmt.Sprint("/proc/", pid)); err == nil {
			t.Error("it is still there")
		}
		// Its child was killed too, although the PID namespace still exists.
		if got := n.output(pod, shell("c", "ps | grep -c '[s]leep 1000'", share)); got != "0\n" {
			t.Errorf("%s processes are left", got)
		}
	})
	t.Run("host namespaces", func(t *testing.T) {
		pod := n.run(n.pod("host", func(c *runtimeapi.PodSandboxConfig) {
			c.Hostname = ""
			o := c.Linux.SecurityContext.NamespaceOptions
			o.Network, o.Ipc, o.Pid = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
		}))
		name, _ := os.Hostname()
		got := n.output(pod, shell("c", "hostname; ip addr show hk-br0 | grep -c 10.244.0.1; test -d /proc/"+fmt.Sprint(os.Getpid())+" && echo pid", func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		}))
		if got != name+"\n1\npid\n" {
			t.Errorf("it sees %q", got)
		}
		st, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		if err != nil || st.Status.Network.Ip != "" {
			t.Errorf("it is %v, %v", st, err)
		}
	})
	t.Run("host port", func(t *testing.T) {
		pod := n.run(n.pod("port", func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8077, ContainerPort: 80, HostIp: "127.0.0.1"}}
		}))
		n.startContainer(pod, shell("c", "mkdir /www; echo hello > /www/index.html; exec httpd -f -p 80 -h /www"))
		var body []byte
		n.eventually("an answer", func() bool {
			resp, err := http.Get("http://127.0.0.1:8077/")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, _ = io.ReadAll(resp.Body)
			return true
		})
		if string(body) != "hello\n" {
			t.Errorf("got %q", body)
		}
	})
	t.Run("stop", func(t *testing.T) {
		pod := n.run(n.pod("stop"))
		polite := n.startContainer(pod, shell("polite", "trap 'echo bye; exit 0' INT; while true; do sleep 0.01; done"))
		// More signals may be ignored, inherited from the parent of the test.
		interrupt := func(id, which string) {
			t.Helper()
			n.eventually("the trap", func() bool {
				got, err := n.exec(id, 60, "grep", which, "/proc/1/status")
				_, mask, _ := strings.Cut(strings.TrimSpace(string(got.GetStdout())), "\t")
				signals, parseErr := strconv.ParseUint(mask, 16, 64)
				return err == nil && parseErr == nil && signals&(1<<(syscall.SIGINT-1)) != 0
			})
		}
		interrupt(polite, "SigCgt")
		deaf := n.startContainer(pod, shell("deaf", "trap '' TERM INT; sleep 1000 & sleep 1000"))
		interrupt(deaf, "SigIgn")
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: polite, Timeout: 20}); err != nil {
			t.Error(err)
		}
		if st := n.status(polite); st.ExitCode != 0 || st.Reason != "Completed" || n.logText(polite) != "bye\n" || st.StopSignal != runtimeapi.Signal_SIGNAL_SIGINT {
			t.Errorf("the polite one is %v: %q", st, n.logText(polite))
		}
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: deaf, Timeout: 1}); err != nil {
			t.Error(err)
		}
		if st := n.status(deaf); st.ExitCode != 137 || st.Reason != "Error" {
			t.Errorf("the deaf one is %v", st)
		}
		for range 2 {
			if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
		}
		if _, err := n.create(pod, shell("late", "true")); err == nil {
			t.Error("a container was made in a stopped sandbox")
		}
		for range 2 {
			if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("limits", func(t *testing.T) {
		pod := n.run(n.pod("limits"))
		id := n.startContainer(pod, shell("hungry", "while ! test -e /go; do sleep 0.01; done; x=$(yes | head -c 100000000); echo survived", func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30, CpuQuota: 50000, CpuPeriod: 100000, CpuShares: 512}
		}))
		if _, err := n.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id,
			Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, CpuQuota: -1}}); err != nil {
			t.Error(err)
		}
		if r := n.status(id).Resources.GetLinux(); r.GetMemoryLimitInBytes() != 32<<20 || r.GetCpuShares() != 512 || r.GetCpuQuota() != -1 {
			t.Errorf("its resources are %v", r)
		}
		stats, err := n.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil || stats.Stats.GetMemory().GetAvailableBytes().GetValue() > 32<<20 || stats.Stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
			t.Errorf("its statistics are %v, %v", stats, err)
		}
		if _, err := n.exec(id, 60, "touch", "/go"); err != nil {
			t.Error(err)
		}
		if st := n.waitExit(id); st.ExitCode != 137 || st.Reason != "OOMKilled" {
			t.Errorf("it ended %v: %q", st, n.logText(id))
		}
		pods, err := n.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: &runtimeapi.PodSandboxStatsFilter{Id: pod}})
		if err != nil || len(pods.Stats) != 1 || pods.Stats[0].Linux.GetNetwork().GetDefaultInterface().GetName() != "eth0" {
			t.Errorf("the pod's statistics are %v, %v", pods, err)
		} else if left := pods.Stats[0].Linux.Containers; len(left) > 0 {
			t.Errorf("of containers of the pod that run: %v", left)
		}
		// Disk usage is still reported for exited containers.
		list, err := n.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{PodSandboxId: pod}})
		if err != nil || len(list.Stats) != 1 {
			t.Fatalf("of all containers of the pod: %v, %v", list, err)
		}
		if s := list.Stats[0]; s.Attributes.GetId() != id || s.Cpu != nil || s.Memory != nil || s.WritableLayer.GetInodesUsed().GetValue() == 0 {
			t.Errorf("of the container that has ended: %v", s)
		}
	})
	t.Run("log rotation", func(t *testing.T) {
		pod := n.run(n.pod("log"))
		id := n.startContainer(pod, shell("c", "while true; do echo line; sleep 0.01; done"))
		path := n.status(id).LogPath
		n.eventually("a line", func() bool { return n.logText(id) != "" })
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
		n.eventually("a line in the new log", func() bool { return n.logText(id) != "" })
	})
	t.Run("refused", func(t *testing.T) {
		for name, change := range map[string]func(*runtimeapi.PodSandboxConfig){
			"no name":         func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil },
			"host's sysctl":   func(c *runtimeapi.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"kernel.hostname": "x"} },
			"climbing sysctl": func(c *runtimeapi.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"net/../kernel/panic": "1"} },
			"missing sysctl":  func(c *runtimeapi.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"net.none": "1"} },
			"invalid host port": func(c *runtimeapi.PodSandboxConfig) {
				c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 70000, ContainerPort: 1}}
			},
			"broken DNS": func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Searches = []string{"a\nnameserver 1.2.3.4"} },
		} {
			if resp, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("refused", change)}); err == nil {
				t.Errorf("%s: made %s", name, resp.PodSandboxId)
			}
		}
		// Its name can be reserved again.
		n.run(n.pod("refused"))
		if _, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("x"), RuntimeHandler: "gvisor"}); err == nil {
			t.Error("an unknown handler was accepted")
		}
	})
}

func TestEvents(t *testing.T) {
	n := newNode(t).imported()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	events, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Header(); err != nil {
		t.Fatal(err)
	}
	pod := n.run(n.pod("events"))
	id := n.startContainer(pod, shell("c", "exit 2"))
	var got []string
	next := func() *runtimeapi.ContainerEventResponse {
		e, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		who := "container"
		if e.ContainerId == pod {
			who = "sandbox"
		}
		got = append(got, who+" "+strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"), "_EVENT"))
		return e
	}
	for range 4 {
		next()
	}
	if e := next(); len(e.ContainersStatuses) != 1 || e.ContainersStatuses[0].ExitCode != 2 || e.PodSandboxStatus.GetId() != pod {
		t.Errorf("the exit event is %v", e)
	}
	if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	for range 3 {
		next()
	}
	want := []string{"sandbox CREATED", "sandbox STARTED", "container CREATED", "container STARTED", "container STOPPED",
		"container DELETED", "sandbox STOPPED", "sandbox DELETED"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNoCIDR checks that without pod CIDRs only host network pods can be created.
func TestNoCIDR(t *testing.T) {
	n := newNode(t, noCIDR).imported()
	ctx := context.Background()
	ready := func() (bool, string) {
		t.Helper()
		resp, err := n.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range resp.Status.Conditions {
			if c.Type == runtimeapi.NetworkReady {
				return c.Status, c.Message
			}
		}
		t.Fatal("nothing is said of the network")
		return false, ""
	}
	if ok, why := ready(); ok || !strings.Contains(why, "no pod CIDR yet") && !strings.Contains(why, "being set up") {
		t.Errorf("the network is ready: %t, %q", ok, why)
	}
	if _, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("early")}); err == nil {
		t.Error("a pod was given a network")
	}
	if _, err := n.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
		NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.55.4.0/24"}}}); err != nil {
		t.Fatal(err)
	}
	if ok, why := ready(); !ok {
		t.Errorf("the network is not ready: %s", why)
	}
	st, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: n.run(n.pod("later"))})
	if err != nil || st.Status.Network.Ip != "10.55.4.2" {
		t.Errorf("a pod has %v (%v)", st.GetStatus().GetNetwork(), err)
	}
}

func TestRuntimeConfig(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	first := n.run(n.pod("first"))
	if _, err := n.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
		NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.55.3.0/24,fd55::/64"}}}); err != nil {
		t.Fatal(err)
	}
	second := n.run(n.pod("second"))
	ips := func(id string) string {
		st, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(st.Status.Network.Ip, st.Status.Network.AdditionalIps)
	}
	if got := ips(first); got != "10.244.0.2[]" {
		t.Errorf("the old pod has %s", got)
	}
	if got := ips(second); got != `10.55.3.2[ip:"fd55::2"]` {
		t.Errorf("the new pod has %s", got)
	}
	got := n.output(second, shell("c", "ip -6 addr show eth0 | grep -o fd55::2/64; ip route | grep default"))
	if got != "fd55::2/64\ndefault via 10.55.3.1 dev eth0 onlink \n" && got != "fd55::2/64\ndefault via 10.55.3.1 dev eth0 \n" {
		t.Errorf("inside there is %q", got)
	}
	if c, err := n.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err != nil || c.Linux.CgroupDriver != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("the configuration is %v, %v", c, err)
	}
	if v, err := n.Version(ctx, &runtimeapi.VersionRequest{}); err != nil || v.RuntimeName != "hyperkube" || v.RuntimeApiVersion != "v1" {
		t.Errorf("the version is %v, %v", v, err)
	}
	if out, err := exec.Command("ip6tables-save").CombinedOutput(); err == nil && !strings.Contains(string(out), "fd55::/64") {
		t.Errorf("no masquerading of IPv6: %s", out)
	}
}
