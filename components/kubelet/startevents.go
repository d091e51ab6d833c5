package kubelet

import (
	"hyperkube/components/kubelet/pod/volume"
)

// cgroupV1 is upstream's message of the event on a node with cgroup v1.
const cgroupV1 = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. " +
	"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"

// emitStartEvents emits events about the start of the kubelet and, as warnings, about limits of the node: a
// resolver configuration with too many entries, memory-backed volumes that may be swapped, and cgroup v1.
func (k *Kubelet) emitStartEvents() {
	k.events.NodeNormal("Starting", "Starting kubelet.")
	if why := k.pods.dns.Check(); why != "" {
		k.events.NodeWarning("CheckLimitsForResolvConf", why)
	}
	if k.machine.SwapBytes > 0 {
		if kept, err := volume.NoSwap(); err != nil {
			k.log.Warn("checking whether the kernel supports tmpfs without swap failed; memory-backed volumes, such as those of Secrets, may be swapped to disk: disable swap if this is not acceptable", "err", err)
		} else if !kept {
			k.events.NodeWarning("PossibleMemoryBackedVolumesOnDisk", "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) "+
				"might be swapped to disk and should no longer be considered secure.")
		}
	}
	if k.cgroups == nil {
		return
	}
	if !k.cgroups.Unified() {
		k.events.NodeWarning("CgroupV1", cgroupV1)
	}
}
