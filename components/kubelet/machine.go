package kubelet

import (
	"fmt"
	"os"
	"strconv"

	"k8s.io/api/core/v1"

	"hyperkube/components/kubelet/config"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
)

// enforceReserved sets the cgroup limits of the reserved resources, and the OOM score adjustment of
// this process.
func (k *Kubelet) enforceReserved() error {
	for _, e := range []struct {
		name, cgroup string
		list         v1.ResourceList
	}{
		{config.EnforceKube, k.cfg.Reserved.KubeCgroup, k.cfg.Reserved.Kube}, {config.EnforceSystem, k.cfg.Reserved.SystemCgroup, k.cfg.Reserved.System},
		{config.EnforceKubeCPU, k.cfg.Reserved.KubeCgroup, k.cfg.Reserved.Kube}, {config.EnforceSystemCPU, k.cfg.Reserved.SystemCgroup, k.cfg.Reserved.System},
	} {
		if !k.cfg.Reserved.Enforces(e.name) {
			continue
		}
		if !k.cgroups.Exists(e.cgroup) {
			return fmt.Errorf("failed to enforce %s cgroup limits on %q: cgroup does not exist", e.name, e.cgroup)
		}
		whole := e.name == config.EnforceKube || e.name == config.EnforceSystem
		r := cgroup.Resources{}
		if whole {
			r.MemoryLimit = e.list.Memory().Value()
			if k.host.Limits.MemoryQoS && r.MemoryLimit > 0 {
				r.Unified = map[string]string{"memory.min": strconv.FormatInt(r.MemoryLimit, 10)}
			}
		}
		if cpu := e.list.Cpu().MilliValue(); cpu > 0 {
			r.CPUShares = uint64(max(cpu*1024/1000, 2))
		}
		if pids, ok := e.list["pid"]; ok && whole {
			r.PidsLimit = pids.Value()
		}
		if err := k.cgroups.Set(e.cgroup, r); err != nil {
			return fmt.Errorf("enforcing reserved resources: %w", err)
		}
	}
	// If the kernel does not let the process lower the score, the nearest possible value is used.
	score := process.OOMScoreAdj(*k.cfg.Machine.OOMScore)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		k.log.Warn("setting the kubelet's OOM score adjustment failed", "err", err)
	}
	return nil
}
