package pods

import (
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/volume"
)

// translatorHost returns a host that needs only the image busybox:1.
func translatorHost(t *testing.T) *host {
	return newHost(Config{
		CRI: crifake.New("busybox:1").Client(), Volumes: &volume.Set{Root: t.TempDir()}, Logs: Logs{Pods: "/logs"},
		Events: record.NewFakeRecorder(100), Objects: objectcache.New(nil, slog.New(slog.DiscardHandler)),
		Node: Node{
			DNS: dnsconf.Node{ClusterDomain: "cluster.local"}, IPs: func() []string { return []string{"192.0.2.1"} },
			Object: func() *v1.Node { return nil }, Allocatable: func() v1.ResourceList { return nil },
		},
		Limits:   Limits{CPUQuota: true, CPUQuotaPeriod: 100 * time.Millisecond},
		Security: Security{SeccompRoot: "/seccomp", Sysctls: map[string]string{"net.ipv4.ping_group_range": "0 1"}},
	})
}

// TestSandboxOfPod checks how fields of a pod are translated to the sandbox configuration.
func TestSandboxOfPod(t *testing.T) {
	yes, user, group, fsGroup := true, int64(1000), int64(2000), int64(3000)
	strict, over := v1.SupplementalGroupsPolicyStrict, "over.example"
	type got = *runtimeapi.PodSandboxConfig
	for name, c := range map[string]struct {
		change func(*v1.PodSpec)
		look   func(got) any
		want   any
	}{
		"own namespaces": {nil, func(s got) any {
			n := namespacesOf(s)
			return []any{n.Pid, n.Ipc, n.Network, n.UsernsOptions}
		}, []any{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_POD, (*runtimeapi.UserNamespace)(nil)}},
		"host's processes": {func(s *v1.PodSpec) { s.HostPID = true }, func(s got) any { return namespacesOf(s).Pid }, runtimeapi.NamespaceMode_NODE},
		"host's IPC":       {func(s *v1.PodSpec) { s.HostIPC = true }, func(s got) any { return namespacesOf(s).Ipc }, runtimeapi.NamespaceMode_NODE},
		"host's network":   {func(s *v1.PodSpec) { s.HostNetwork = true }, func(s got) any { return namespacesOf(s).Network }, runtimeapi.NamespaceMode_NODE},
		"host's ports":     {func(s *v1.PodSpec) { s.HostNetwork = true }, func(s got) any { return len(s.PortMappings) }, 0},
		"host's name":      {func(s *v1.PodSpec) { s.HostNetwork = true }, func(s got) any { return s.Hostname }, ""},
		"shared processes": {func(s *v1.PodSpec) { s.ShareProcessNamespace = &yes }, func(s got) any { return namespacesOf(s).Pid }, runtimeapi.NamespaceMode_POD},
		"ports": {nil, func(s got) any {
			p := s.PortMappings[0]
			return []any{p.Protocol, p.ContainerPort, p.HostPort, p.HostIp}
		}, []any{runtimeapi.Protocol_UDP, int32(53), int32(5353), "127.0.0.1"}},
		"name":           {nil, func(s got) any { return s.Hostname }, "a"},
		"hostname":       {func(s *v1.PodSpec) { s.Hostname = "h" }, func(s got) any { return s.Hostname }, "h"},
		"subdomain":      {func(s *v1.PodSpec) { s.Hostname, s.Subdomain = "h", "sub" }, func(s got) any { return s.Hostname }, "h"},
		"FQDN":           {func(s *v1.PodSpec) { s.Subdomain, s.SetHostnameAsFQDN = "sub", &yes }, func(s got) any { return s.Hostname }, "a.sub.default.svc.cluster.local"},
		"FQDN of no use": {func(s *v1.PodSpec) { s.SetHostnameAsFQDN = &yes }, func(s got) any { return s.Hostname }, "a"},
		"another name":   {func(s *v1.PodSpec) { s.HostnameOverride = &over }, func(s got) any { return s.Hostname }, over},
		"sysctls":        {nil, func(s got) any { return s.Linux.Sysctls }, map[string]string{"net.ipv4.ping_group_range": "0 1"}},
		"settings": {func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "5 6"}, {Name: "kernel.shm_rmid_forced", Value: "1"}}}
		}, func(s got) any { return s.Linux.Sysctls }, map[string]string{"net.ipv4.ping_group_range": "5 6", "kernel.shm_rmid_forced": "1"}},
		"sysctls with host network": {func(s *v1.PodSpec) { s.HostNetwork = true }, func(s got) any { return s.Linux.Sysctls }, map[string]string{}},
		"user and groups": {func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &group, FSGroup: &fsGroup, SupplementalGroups: []int64{4000}, SupplementalGroupsPolicy: &strict}
		}, func(s got) any {
			c := s.Linux.SecurityContext
			return []any{c.RunAsUser.Value, c.RunAsGroup.Value, c.SupplementalGroups, c.SupplementalGroupsPolicy}
		}, []any{user, group, []int64{4000, 3000}, runtimeapi.SupplementalGroupsPolicy_Strict}},
		"privileged": {func(s *v1.PodSpec) { s.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: &yes} }, func(s got) any { return s.Linux.SecurityContext.Privileged }, true},
		"class":      {nil, func(s got) any { return s.Linux.CgroupParent }, "/kubepods/besteffort/poduid-a"},
		"resources": {func(s *v1.PodSpec) {
			s.Containers[0].Resources.Limits = cpuMemory("500m", "64Mi")
			s.Containers[0].Resources.Requests = cpuMemory("250m", "32Mi")
			s.Overhead = cpuMemory("100m", "8Mi")
		}, func(s got) any {
			r, o := s.Linux.Resources, s.Linux.Overhead
			return []any{s.Linux.CgroupParent, r.CpuShares, r.CpuQuota, r.MemoryLimitInBytes, o.CpuShares, o.CpuQuota, o.MemoryLimitInBytes}
		}, []any{"/kubepods/burstable/poduid-a", int64(256), int64(50000), int64(64 << 20), int64(102), int64(10000), int64(8 << 20)}},
	} {
		pod := newPod("a", func(p *v1.Pod) {
			p.Spec.DNSPolicy = v1.DNSDefault
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{Protocol: v1.ProtocolUDP, ContainerPort: 53, HostPort: 5353, HostIP: "127.0.0.1"}}
			if c.change != nil {
				c.change(&p.Spec)
			}
		})
		s, err := translatorHost(t).configs.sandboxConfig(pod, 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if have := c.look(s); !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %v, want %v", name, have, c.want)
		}
	}
	long := newPod("a", func(p *v1.Pod) { p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("s", 50), &yes })
	if _, err := translatorHost(t).configs.sandboxConfig(long, 0); err == nil || !strings.HasSuffix(err.Error(), "is too long (64 characters is the max, 78 characters requested)") {
		t.Errorf("a name that is too long: %v", err)
	}
}

func namespacesOf(s *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return s.Linux.SecurityContext.NamespaceOptions
}

// TestOverheadOfPod checks that the overhead of a RuntimeClass is added to the pod's cgroup but not
// to its containers.
func TestOverheadOfPod(t *testing.T) {
	pod := newPod("a", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: cpuMemory("500m", "64Mi"), Requests: cpuMemory("500m", "64Mi")}
		p.Spec.Overhead = cpuMemory("100m", "8Mi")
	})
	h := translatorHost(t)
	if r := h.limits.podResources(pod); r.CPUShares != 614 || r.CPUQuota != 60000 || r.MemoryLimit != 72<<20 {
		t.Errorf("the pod: %+v", r)
	}
	if r := h.limits.containerResources(pod, &pod.Spec.Containers[0]); r.CpuShares != 512 || r.CpuQuota != 50000 || r.MemoryLimitInBytes != 64<<20 {
		t.Errorf("the container: %+v", r)
	}
}

// TestContainerOfPod checks how fields of a container are translated to its configuration.
func TestContainerOfPod(t *testing.T) {
	yes, no, root, user, other := true, false, int64(0), int64(1000), int64(1001)
	unmasked, profile, signal := v1.UnmaskedProcMount, "p.json", v1.SIGUSR1
	type got = *runtimeapi.ContainerConfig
	security := func(c *v1.SecurityContext) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Containers[0].SecurityContext = c }
	}
	context := func(look func(*runtimeapi.LinuxContainerSecurityContext) any) func(got) any {
		return func(c got) any { return look(c.Linux.SecurityContext) }
	}
	type secured = *runtimeapi.LinuxContainerSecurityContext
	seccomp := func(s secured) any { return []any{s.Seccomp.ProfileType, s.Seccomp.LocalhostRef} }
	apparmor := func(s secured) any { return []any{s.Apparmor.ProfileType, s.Apparmor.LocalhostRef} }
	for name, c := range map[string]struct {
		change func(*v1.Pod)
		look   func(got) any
		want   any
	}{
		"nothing": {nil, context(func(s secured) any {
			return []any{s.Privileged, s.ReadonlyRootfs, s.NoNewPrivs, s.Capabilities, s.Apparmor}
		}), []any{false, false, false, (*runtimeapi.Capability)(nil), (*runtimeapi.SecurityProfile)(nil)}},
		"privileged":              {security(&v1.SecurityContext{Privileged: &yes}), context(func(s secured) any { return s.Privileged }), true},
		"read-only":               {security(&v1.SecurityContext{ReadOnlyRootFilesystem: &yes}), context(func(s secured) any { return s.ReadonlyRootfs }), true},
		"no privilege escalation": {security(&v1.SecurityContext{AllowPrivilegeEscalation: &no}), context(func(s secured) any { return s.NoNewPrivs }), true},
		"more":                    {security(&v1.SecurityContext{AllowPrivilegeEscalation: &yes}), context(func(s secured) any { return s.NoNewPrivs }), false},
		"capabilities":            {security(&v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}}}), context(func(s secured) any { return []any{s.Capabilities.AddCapabilities, s.Capabilities.DropCapabilities} }), []any{[]string{"NET_ADMIN"}, []string{"ALL"}}},
		"masked": {nil, context(func(s secured) any {
			return slices.Contains(s.MaskedPaths, "/proc/kcore") && slices.Contains(s.ReadonlyPaths, "/proc/sys")
		}), true},
		"unmasked": {security(&v1.SecurityContext{ProcMount: &unmasked}), context(func(s secured) any { return len(s.MaskedPaths) + len(s.ReadonlyPaths) }), 0},
		"user of the pod": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes}
		},
			context(func(s secured) any { return []any{s.RunAsUser.Value, s.RunAsGroup.Value} }), []any{user, user}},
		"container user": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user}
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsUser: &other, RunAsGroup: &other}
		}, context(func(s secured) any { return []any{s.RunAsUser.Value, s.RunAsGroup.Value} }), []any{other, other}},
		"no seccomp":                {nil, context(seccomp), []any{runtimeapi.SecurityProfile_Unconfined, ""}},
		"seccomp":                   {security(&v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}), context(seccomp), []any{runtimeapi.SecurityProfile_RuntimeDefault, ""}},
		"localhost seccomp profile": {security(&v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile}}), context(seccomp), []any{runtimeapi.SecurityProfile_Localhost, "/seccomp/p.json"}},
		"seccomp of the pod, overridden": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}}
		}, context(seccomp), []any{runtimeapi.SecurityProfile_Unconfined, ""}},
		"AppArmor":              {security(&v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}), context(apparmor), []any{runtimeapi.SecurityProfile_RuntimeDefault, ""}},
		"AppArmor of a profile": {security(&v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &profile}}), context(apparmor), []any{runtimeapi.SecurityProfile_Localhost, profile}},
		"AppArmor of the pod": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}}
		}, context(apparmor), []any{runtimeapi.SecurityProfile_Unconfined, ""}},
		"SELinux of the pod": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c1"}}
		}, context(func(s secured) any { return s.SelinuxOptions.Level }), "s0:c1"},
		"groups": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &user, SupplementalGroups: []int64{7}}
		}, context(func(s secured) any { return s.SupplementalGroups }), []int64{7, user}},
		"command": {func(p *v1.Pod) {
			k := &p.Spec.Containers[0]
			k.Command, k.Args, k.WorkingDir, k.Env = []string{"run", "$(X)"}, []string{"$$(X)", "$(Y)"}, "/w", []v1.EnvVar{{Name: "X", Value: "x"}}
		}, func(c got) any { return []any{c.Command, c.Args, c.WorkingDir, string(c.Envs[0].Value)} }, []any{[]string{"run", "x"}, []string{"$(X)", "$(Y)"}, "/w", "x"}},
		"terminal":    {func(p *v1.Pod) { k := &p.Spec.Containers[0]; k.Stdin, k.StdinOnce, k.TTY = true, true, true }, func(c got) any { return []any{c.Stdin, c.StdinOnce, c.Tty} }, []any{true, true, true}},
		"stop signal": {func(p *v1.Pod) { p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &signal} }, func(c got) any { return c.StopSignal }, runtimeapi.Signal_SIGNAL_SIGUSR1},
		"log":         {nil, func(c got) any { return c.LogPath }, filepath.Join("main", "3.log")},
		"huge pages": {func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), "hugepages-1Gi": resource.MustParse("1Gi")}
		}, func(c got) any {
			out := map[string]uint64{}
			for _, l := range c.Linux.Resources.HugepageLimits {
				out[l.PageSize] = l.Limit
			}
			return out
		}, map[string]uint64{"2MB": 4 << 20, "1GB": 1 << 30}},
	} {
		pod := newPod("a", c.change)
		cfg, err := translatorHost(t).configs.containerConfig(t.Context(), pod, containerInput{container: &pod.Spec.Containers[0], attempt: 3, image: "busybox:1"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if have := c.look(cfg); !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %v, want %v", name, have, c.want)
		}
	}
	for name, c := range map[string]struct {
		image  *runtimeapi.Image
		user   *int64
		failed string
	}{
		"container runs as root":              {&runtimeapi.Image{}, &root, "container's runAsUser breaks non-root policy (pod: \"a_default(uid-a)\", container: main)"},
		"container runs as non-root":          {&runtimeapi.Image{}, &user, ""},
		"image user root":                     {&runtimeapi.Image{Uid: &runtimeapi.Int64Value{}}, nil, "container has runAsNonRoot and image will run as root (pod: \"a_default(uid-a)\", container: main)"},
		"image user non-root":                 {&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 5}}, nil, ""},
		"image user is a name":                {&runtimeapi.Image{Username: "web"}, nil, "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root (pod: \"a_default(uid-a)\", container: main)"},
		"image user is a name, runAsUser set": {&runtimeapi.Image{Username: "web"}, &user, ""},
	} {
		pod := newPod("a", func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: c.user}
		})
		said := ""
		if err := verifyNonRoot(pod, &pod.Spec.Containers[0], c.image); err != nil {
			said = err.Error()
		}
		if said != c.failed {
			t.Errorf("%s: %q", name, said)
		}
	}
}
