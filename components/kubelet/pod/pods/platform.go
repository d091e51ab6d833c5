package pods

import (
	"path"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Platform has the properties of the container runtime and the kernel that the kubelet detects after it has
// started. The parts that read it are created before its values are known; they are set before the first pod
// runs. Its zero value means a runtime without a name, cgroupfs and a kernel that accounts for swap. Its
// methods are safe for concurrent use.
type Platform struct {
	runtimeName   atomic.Pointer[string]
	systemd       atomic.Bool
	noSwapAccount atomic.Bool
}

// SetRuntimeName sets the name of the runtime, which is the prefix of container IDs in the API.
func (p *Platform) SetRuntimeName(name string) { p.runtimeName.Store(&name) }

// RuntimeName returns the name of the runtime, or "" before it is known.
func (p *Platform) RuntimeName() string {
	if name := p.runtimeName.Load(); name != nil {
		return *name
	}
	return ""
}

// SetSystemd sets whether cgroups are named as systemd slices, as a runtime with the cgroup driver systemd
// requires.
func (p *Platform) SetSystemd(systemd bool) { p.systemd.Store(systemd) }

// Systemd reports whether cgroups are named as systemd slices.
func (p *Platform) Systemd() bool { return p.systemd.Load() }

// DisableSwapAccounting records that the kernel does not account for swap per cgroup.
func (p *Platform) DisableSwapAccounting() { p.noSwapAccount.Store(true) }

// SwapAccounting reports whether the kernel accounts for swap per cgroup.
func (p *Platform) SwapAccounting() bool { return !p.noSwapAccount.Load() }

// CgroupNames names the cgroups of pods.
type CgroupNames struct {
	// Root is the parent cgroup of kubepods, "" or "/…".
	Root string
	// Platform determines the naming scheme. It must not be nil.
	Platform *Platform
}

// OfClass returns the parent cgroup of the pods of a QoS class, as a path from the root of the hierarchy. For
// Guaranteed pods it is kubepods, the cgroup of all pods.
func (n CgroupNames) OfClass(class v1.PodQOSClass) string {
	return path.Dir(n.of("", class))
}

// ofPod returns the pod's cgroup as a path from the root of the hierarchy.
func (n CgroupNames) ofPod(pod *v1.Pod) string { return n.of(pod.UID, QOS(pod)) }

// candidates returns the cgroups that the pod may have. There are three, one for each QoS class, if the pod's
// spec is unknown, because the pod was deleted from the API before the kubelet started.
func (n CgroupNames) candidates(pod *v1.Pod) []string {
	if len(pod.Spec.Containers) > 0 || pod.Status.QOSClass != "" {
		return []string{n.ofPod(pod)}
	}
	var out []string
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		out = append(out, n.of(pod.UID, class))
	}
	return out
}

// parent returns the pod's cgroup as the CRI's cgroupParent: the name of the slice with systemd, otherwise
// the path.
func (n CgroupNames) parent(pod *v1.Pod) string {
	full := n.ofPod(pod)
	if n.Platform.Systemd() {
		return path.Base(full)
	}
	return full
}

// of returns the cgroup of a pod with the UID and QoS class, as a path from the root of the hierarchy.
func (n CgroupNames) of(uid types.UID, qos v1.PodQOSClass) string {
	parts := []string{"kubepods"}
	switch qos {
	case v1.PodQOSBurstable:
		parts = append(parts, "burstable")
	case v1.PodQOSBestEffort:
		parts = append(parts, "besteffort")
	}
	parts = append(parts, "pod"+string(uid))
	if n.Platform.Systemd() {
		out, prefix := n.Root, ""
		for _, p := range parts {
			prefix += strings.ReplaceAll(p, "-", "_")
			out = path.Join("/", out, prefix+".slice")
			prefix += "-"
		}
		return out
	}
	return path.Join(append([]string{"/", n.Root}, parts...)...)
}
