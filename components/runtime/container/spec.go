//go:build cgo

package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/process"
)

// defaultPath is the PATH variable of a container whose image and configuration do not set it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Input contains everything from which Build creates a container's OCI specification.
type Input struct {
	ID     string
	Config *runtimeapi.ContainerConfig
	Image  images.Config
	// Rootfs is the mounted root of the container.
	Rootfs string
	// Mounts are the mounts of Config with resolved sources: image volumes are host directories
	// here.
	Mounts []*runtimeapi.Mount
	// Cgroup is the container's cgroup, as a path below the cgroup roots.
	Cgroup string
	// UnifiedCgroups is true if the machine uses cgroup v2.
	UnifiedCgroups bool

	// SandboxPID is the process that holds the pod's namespaces. TargetPID is the process whose PID
	// namespace a debug container joins, or zero.
	SandboxPID, TargetPID int
	// SandboxFiles are the files of the pod, such as its hosts file.
	SandboxFiles sandbox.Files
	// SHM is the path of the pod's /dev/shm.
	SHM string
	// Hostname is the hostname of the pod.
	Hostname string
	// UserNS is true if the pod has its own user namespace.
	UserNS bool
	// SandboxPrivileged allows privileged containers.
	SandboxPrivileged bool
	// AppArmor is the state of AppArmor on the host.
	AppArmor AppArmor
	// Labels are the SELinux labels, or nil.
	Labels *selinux.Labels
	// CDIDirs are the directories of CDI files. Nil means the default directories.
	CDIDirs []string
	// Kubelet is the kubelet's directory as CDI files refer to it.
	Kubelet layout.Alias
}

// User contains the IDs of a container's user and groups.
type User struct {
	UID, GID int64
	// Groups are the supplemental groups, including the primary group.
	Groups []int64
}

// Build returns the OCI runtime specification of a container. It returns an error for settings that the sandbox does
// not allow, such as a privileged container in an unprivileged sandbox, and for users, devices, mounts or security
// profiles that do not exist.
func Build(in Input) (*specs.Spec, error) {
	security := in.Config.GetLinux().GetSecurityContext()
	if security == nil {
		security = &runtimeapi.LinuxContainerSecurityContext{}
	}
	privileged := security.GetPrivileged()
	if privileged && !in.SandboxPrivileged {
		return nil, errors.New("no privileged container allowed in sandbox")
	}
	if privileged && in.UserNS {
		return nil, errors.New("no privileged container allowed in a pod with its own user namespace")
	}
	first, err := buildProcess(in, security)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Process: first,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: security.GetReadonlyRootfs()},
		Linux: &specs.Linux{
			CgroupsPath: in.Cgroup,
			Namespaces:  buildNamespaces(in, security),
			Resources:   Resources(in.Config.GetLinux().GetResources(), in.UnifiedCgroups),
		},
	}
	if err := buildDevices(in, privileged, spec); err != nil {
		return nil, err
	}
	if err := buildMounts(in, security, spec); err != nil {
		return nil, err
	}
	if err := applyCDI(in, spec); err != nil {
		return nil, err
	}
	if !privileged {
		spec.Linux.MaskedPaths = security.GetMaskedPaths()
		spec.Linux.ReadonlyPaths = security.GetReadonlyPaths()
		if len(spec.Linux.MaskedPaths)+len(spec.Linux.ReadonlyPaths) == 0 && security.GetNamespaceOptions().GetUsernsOptions() == nil {
			// Use the default paths if the caller does not set any.
			spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
		}
	}
	spec.Linux.Seccomp, err = seccompFor(security, privileged, spec)
	if err != nil {
		return nil, err
	}
	first.ApparmorProfile, err = in.AppArmor.profileFor(security, privileged)
	if err != nil {
		return nil, err
	}
	first.SelinuxLabel, spec.Linux.MountLabel = in.Labels.ForProcess(), in.Labels.ForMount()
	return spec, nil
}

// maskedPaths and readonlyPaths are the paths that containers cannot read and cannot write by default, as with
// common container engines.
var (
	maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// buildProcess returns the settings of the container's first process: command, working directory, environment, user and
// capabilities. It returns an error if neither the pod nor the image specifies a command.
func buildProcess(in Input, security *runtimeapi.LinuxContainerSecurityContext) (*specs.Process, error) {
	args := command(in.Config.GetCommand(), in.Config.GetArgs(), in.Image)
	if len(args) == 0 {
		return nil, errors.New("no command specified")
	}
	cwd := in.Config.GetWorkingDir()
	if cwd == "" {
		cwd = in.Image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	if !filepath.IsAbs(cwd) {
		cwd = "/" + cwd
	}
	user, err := resolveUser(in.Rootfs, security, in.Image)
	if err != nil {
		return nil, err
	}
	caps, err := capabilities(security)
	if err != nil {
		return nil, err
	}
	p := &specs.Process{
		Terminal:        in.Config.GetTty(),
		Args:            args,
		Env:             environment(in),
		Cwd:             filepath.Clean(cwd),
		User:            specs.User{UID: uint32(user.UID), GID: uint32(user.GID)},
		Capabilities:    caps,
		NoNewPrivileges: security.GetNoNewPrivs(),
	}
	for _, g := range user.Groups {
		p.User.AdditionalGids = append(p.User.AdditionalGids, uint32(g))
	}
	adj := process.OOMScoreAdj(int(in.Config.GetLinux().GetResources().GetOomScoreAdj()))
	p.OOMScoreAdj = &adj
	return p, nil
}

// command returns the command line of a container. command and args are those of the pod. Without a command, the
// entrypoint of the image is used, and without both, also the image's arguments.
func command(command, args []string, image images.Config) []string {
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	return append(slices.Clone(command), args...)
}

// environment returns the environment variables of a container, in increasing precedence: defaults, those of the image
// and those of the pod. A variable that is set again keeps its position.
func environment(in Input) []string {
	env := []string{defaultPath}
	index := map[string]int{"PATH": 0}
	set := func(variable string) {
		name, _, _ := strings.Cut(variable, "=")
		if i, ok := index[name]; ok {
			env[i] = variable
			return
		}
		index[name] = len(env)
		env = append(env, variable)
	}
	set("HOSTNAME=" + in.Hostname)
	if in.Config.GetTty() {
		set("TERM=xterm")
	}
	for _, variable := range in.Image.Env {
		set(variable)
	}
	for _, e := range in.Config.GetEnvs() {
		set(e.GetKey() + "=" + string(e.GetValue()))
	}
	return env
}

// buildNamespaces returns the namespaces of a container: those of its sandbox, and its own mount namespace.
// Depending on the pod, the PID namespace is the container's own, or that of the sandbox, the target container
// or the host. With cgroup v2, a container has its own cgroup namespace unless it is privileged.
func buildNamespaces(in Input, security *runtimeapi.LinuxContainerSecurityContext) []specs.LinuxNamespace {
	options := security.GetNamespaceOptions()
	of := func(pid int, kind string) string { return fmt.Sprintf("/proc/%d/ns/%s", pid, kind) }
	// Namespaces that the sandbox shares with the host are joined through the sandbox process too,
	// so they need no special handling.
	list := []specs.LinuxNamespace{
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: of(in.SandboxPID, "net")},
		{Type: specs.IPCNamespace, Path: of(in.SandboxPID, "ipc")},
		{Type: specs.UTSNamespace, Path: of(in.SandboxPID, "uts")},
	}
	switch options.GetPid() {
	case runtimeapi.NamespaceMode_CONTAINER:
		list = append(list, specs.LinuxNamespace{Type: specs.PIDNamespace})
	case runtimeapi.NamespaceMode_TARGET:
		list = append(list, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: of(in.TargetPID, "pid")})
	case runtimeapi.NamespaceMode_POD:
		list = append(list, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: of(in.SandboxPID, "pid")})
	}
	if in.UserNS {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace, Path: of(in.SandboxPID, "user")})
	}
	// Privileged containers use the host's cgroup namespace, because they manage the machine.
	//
	// https://kep.k8s.io/2254
	if in.UnifiedCgroups && !security.GetPrivileged() {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list
}

// Resources converts CRI resource limits to those of the OCI specification. unified is true on a host with
// cgroup v2. Zero values mean no limit. Without a swap limit, memory and swap together are limited to the
// memory limit. Limits for swap and huge pages are omitted if the host does not support them.
func Resources(r *runtimeapi.LinuxContainerResources, unified bool) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{}, Memory: &specs.LinuxMemory{}}
	if r == nil {
		return out
	}
	if r.CpuShares != 0 {
		n := uint64(max(r.CpuShares, 2))
		out.CPU.Shares = &n
	}
	if r.CpuQuota != 0 {
		n := r.CpuQuota
		out.CPU.Quota = &n
	}
	if r.CpuPeriod != 0 {
		n := uint64(r.CpuPeriod)
		out.CPU.Period = &n
	}
	out.CPU.Cpus, out.CPU.Mems = r.CpusetCpus, r.CpusetMems
	if r.MemoryLimitInBytes != 0 {
		n := r.MemoryLimitInBytes
		out.Memory.Limit = &n
		swap := n
		if r.MemorySwapLimitInBytes != 0 {
			swap = r.MemorySwapLimitInBytes
		}
		// The limit exists only with swap accounting.
		if n > 0 && swapAccounting(unified) {
			out.Memory.Swap = &swap
		}
	}
	for _, h := range r.HugepageLimits {
		if !unified || h.Limit > 0 {
			if _, err := os.Stat("/sys/kernel/mm/hugepages"); err == nil && hasHugetlb(unified) {
				out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.PageSize, Limit: h.Limit})
			}
		}
	}
	if len(r.Unified) > 0 && unified {
		out.Unified = maps.Clone(r.Unified)
	}
	return out
}

// swapAccounting reports whether the kernel accounts for swap per cgroup, so that a swap limit can be set.
func swapAccounting(unified bool) bool {
	file := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if unified {
		file = "/proc/self/cgroup"
		data, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		_, path, _ := strings.Cut(strings.TrimSpace(string(data)), "::")
		if path == "/" {
			return true // only cgroups below the root have this file
		}
		file = filepath.Join("/sys/fs/cgroup", path, "memory.swap.max")
	}
	_, err := os.Stat(file)
	return err == nil
}

// hasHugetlb reports whether the cgroup controller for huge pages is available.
func hasHugetlb(unified bool) bool {
	if !unified {
		_, err := os.Stat("/sys/fs/cgroup/hugetlb")
		return err == nil
	}
	data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	return err == nil && slices.Contains(strings.Fields(string(data)), "hugetlb")
}
