package pods

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// maskedPaths and readonlyPaths are the paths that containers cannot read and cannot write, unless they request an
// unmasked /proc.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// namespaces returns which namespaces of the node, the pod or the container the pod's processes use. By default
// each container has its own process namespace. It returns an error if the pod requires a user namespace and no
// range of IDs is free.
func (t *translator) namespaces(pod *v1.Pod) (*runtimeapi.NamespaceOption, error) {
	o := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	var err error
	if o.UsernsOptions, err = t.userNamespace(pod); err != nil {
		return nil, err
	}
	return o, nil
}

// userNamespace returns the ID mappings of the pod's user namespace, or nil if the pod uses that of the host.
// It allocates a range of IDs for the pod on the first call.
func (t *translator) userNamespace(pod *v1.Pod) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	return t.security.Users.For(filepath.Dir(t.volumes.PodDir(pod.UID)), pod.UID)
}

// sandboxSecurity returns the security context of the pod's sandbox. The sandbox is privileged if one of the
// containers is.
func (t *translator) sandboxSecurity(pod *v1.Pod) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	options, err := t.namespaces(pod)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: options,
		Privileged:       anyPrivileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		if sc.RunAsUser != nil {
			out.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
		}
		if sc.RunAsGroup != nil && sc.RunAsUser != nil {
			out.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
		}
		out.SupplementalGroups = groups(pod)
		out.SupplementalGroupsPolicy = groupsPolicy(sc)
		out.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	return out, nil
}

// anyPrivileged reports whether an init or app container of the pod is privileged.
func anyPrivileged(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && ptr.Deref(sc.Privileged, false) {
				return true
			}
		}
	}
	return false
}

// groups returns the supplemental groups of the pod's containers, including its fsGroup.
func groups(pod *v1.Pod) []int64 {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	out := slices.Clone(sc.SupplementalGroups)
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	return out
}

func groupsPolicy(sc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// effective returns the security context of a container. Fields that the container does not set are those of
// the pod. The result is a copy.
func effective(pod *v1.Pod, c *v1.Container) *v1.SecurityContext {
	out := &v1.SecurityContext{}
	if c.SecurityContext != nil {
		out = c.SecurityContext.DeepCopy()
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = p.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = p.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = p.SELinuxOptions
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = p.SeccompProfile
	}
	if out.AppArmorProfile == nil {
		out.AppArmorProfile = p.AppArmorProfile
	}
	return out
}

// verifyNonRoot returns an error if a container has runAsNonRoot but would run as root, or if that cannot be
// verified because the image's user is a name. The container is then not created.
func verifyNonRoot(pod *v1.Pod, c *v1.Container, image *runtimeapi.Image) error {
	sc := effective(pod, c)
	if !ptr.Deref(sc.RunAsNonRoot, false) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
	if sc.RunAsUser != nil {
		if *sc.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	switch {
	case image.GetUid() != nil && image.GetUid().GetValue() == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case image.GetUid() == nil && image.GetUsername() != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", image.GetUsername(), where)
	case image.GetUid() == nil:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	}
	return nil
}

// containerSecurity returns the security context of a container. image is the container's image, whose user
// applies if the pod specifies none. target is the ID of the container whose process namespace is shared, or
// "".
func (t *translator) containerSecurity(pod *v1.Pod, c *v1.Container, image *runtimeapi.Image, target string) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(pod, c)
	options, err := t.namespaces(pod)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:         ptr.Deref(sc.Privileged, false),
		ReadonlyRootfs:     ptr.Deref(sc.ReadOnlyRootFilesystem, false),
		NamespaceOptions:   options,
		SelinuxOptions:     selinux(sc.SELinuxOptions),
		SupplementalGroups: groups(pod),
		Seccomp:            t.seccomp(sc),
		Apparmor:           apparmor(sc),
		// Set-user-ID programs work only if privilege escalation is allowed, which is the default.
		NoNewPrivs: sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation && !ptr.Deref(sc.Privileged, false),
	}
	if p := pod.Spec.SecurityContext; p != nil {
		out.SupplementalGroupsPolicy = groupsPolicy(p)
	}
	if target != "" {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = target
	}
	switch {
	case sc.RunAsUser != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	case image.GetUid() != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: image.GetUid().GetValue()}
	default:
		out.RunAsUsername = image.GetUsername()
	}
	if sc.RunAsGroup != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
		if out.RunAsUser == nil && out.RunAsUsername == "" {
			out.RunAsUser = &runtimeapi.Int64Value{}
		}
	}
	if sc.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, x := range sc.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(x))
		}
		for _, x := range sc.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(x))
		}
	}
	if sc.ProcMount == nil || *sc.ProcMount == v1.DefaultProcMount {
		out.MaskedPaths, out.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
	}
	return out, nil
}

// seccomp returns the seccomp profile of a container. A container without one is unconfined, or uses
// RuntimeDefault if the kubelet is configured to do that.
func (t *translator) seccomp(sc *v1.SecurityContext) *runtimeapi.SecurityProfile {
	out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	if t.security.SeccompDefault {
		out.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
	}
	if p := sc.SeccompProfile; p != nil {
		switch p.Type {
		case v1.SeccompProfileTypeRuntimeDefault:
			out.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
		case v1.SeccompProfileTypeUnconfined:
			out.ProfileType = runtimeapi.SecurityProfile_Unconfined
		case v1.SeccompProfileTypeLocalhost:
			out.ProfileType = runtimeapi.SecurityProfile_Localhost
			if p.LocalhostProfile != nil {
				out.LocalhostRef = filepath.Join(t.security.SeccompRoot, *p.LocalhostProfile)
			}
		}
	}
	return out
}

// apparmor returns the AppArmor profile of a container, or nil for the runtime's default.
func apparmor(sc *v1.SecurityContext) *runtimeapi.SecurityProfile {
	p := sc.AppArmorProfile
	if p == nil {
		return nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case v1.AppArmorProfileTypeLocalhost:
		out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			out.LocalhostRef = *p.LocalhostProfile
		}
		return out
	}
	return nil
}
