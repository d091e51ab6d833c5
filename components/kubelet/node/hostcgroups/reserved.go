package hostcgroups

import (
	"fmt"
	"os"
	"strconv"

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
)

// enforceReserved sets the limits of the cgroups of reserved resources, and the OOM score adjustment of this
// process. It returns an error if such a cgroup does not exist. If the OOM score adjustment cannot be set, that
// is only logged.
func (h *Host) enforceReserved() error {
	for _, e := range h.cfg.Reserved {
		if !h.cfg.Pods.Exists(e.Cgroup) {
			return fmt.Errorf("failed to enforce %s cgroup limits on %q: cgroup does not exist", e.Name, e.Cgroup)
		}
		whole := !e.OnlyCPU
		r := cgroup.Resources{}
		if whole {
			r.MemoryLimit = e.Resources.Memory().Value()
			if h.cfg.MemoryQoS && r.MemoryLimit > 0 {
				r.Unified = map[string]string{"memory.min": strconv.FormatInt(r.MemoryLimit, 10)}
			}
		}
		if cpu := e.Resources.Cpu().MilliValue(); cpu > 0 {
			r.CPUShares = uint64(max(cpu*1024/1000, 2))
		}
		if pids, ok := e.Resources["pid"]; ok && whole {
			r.PidsLimit = pids.Value()
		}
		if err := h.cfg.Pods.Set(e.Cgroup, r); err != nil {
			return fmt.Errorf("enforcing reserved resources: %w", err)
		}
	}
	// If the kernel does not let the process lower the score, the nearest possible value is used.
	score := process.OOMScoreAdj(h.cfg.OOMScore)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		h.cfg.Log.Warn("setting the kubelet's OOM score adjustment failed; the kernel may kill the kubelet before pods when memory is exhausted, retrying at the next start of the kubelet", "score", score, "err", err)
	}
	return nil
}
