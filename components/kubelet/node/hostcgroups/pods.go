// Package hostcgroups prepares the cgroups of the node: those that contain all pods, and those of the kubelet
// and of system processes.
package hostcgroups

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
)

// Config is the configuration of a Host.
type Config struct {
	// Pods is the manager of the pods' cgroups. If it is nil, pods have no cgroups.
	Pods *cgroup.Manager
	// Names names the cgroups of pods.
	Names pods.CgroupNames
	// Kubelet is the cgroup that this process moves itself to, and System the one that processes of the
	// root cgroup are moved to. Both are created if they do not exist, and may be empty.
	Kubelet, System string
	// RuntimeEndpoint is the socket of the container runtime, whose process is not moved.
	RuntimeEndpoint string

	// CPUs is the number of CPUs of the machine.
	CPUs int64
	// EnforcePods limits the memory of all pods together to PodsMemoryLimit, in bytes.
	EnforcePods     bool
	PodsMemoryLimit int64
	// MemoryQoS protects the reserved memory from reclaim, and TieredMemory the memory requests of pods, on
	// cgroup v2.
	MemoryQoS, TieredMemory bool
	// Reserved are the limits of existing cgroups to enforce.
	Reserved []Reservation
	// OOMScore is the oom_score_adj of this process.
	OOMScore int

	// Journal records changes to the host. It may be nil.
	Journal *hostjournal.Journal
	Log     *slog.Logger
}

// Reservation is a cgroup of system or Kubernetes processes that is limited to the resources reserved for them.
type Reservation struct {
	// Name is the value of enforceNodeAllocatable that requests the limit.
	Name   string
	Cgroup string
	// Resources are the reserved resources. With OnlyCPU, only CPU is enforced.
	Resources v1.ResourceList
	OnlyCPU   bool
}

// Host prepares the cgroups of one node that pods share, and those of the kubelet and of system processes.
type Host struct{ cfg Config }

// New returns a Host. It changes nothing before Prepare.
func New(cfg Config) *Host { return &Host{cfg: cfg} }

// Prepare creates the cgroups that pods share, and those of the kubelet and of system processes, after
// recording them in the host journal. It also sets the limits of reserved resources and moves the kubelet into
// its cgroup. If pods have no cgroups, it only does what concerns the kubelet and system processes. The
// runtime's cgroup driver must be known, because it determines the names. Without an error, pods can be
// started.
func (h *Host) Prepare() error {
	if err := h.enterCgroup(); err != nil {
		return err
	}
	if h.cfg.Pods == nil {
		return nil
	}
	kubepods := h.cfg.Names.OfClass(v1.PodQOSGuaranteed)
	if err := h.cfg.Journal.Record(hostjournal.Change{Kind: hostjournal.Cgroup, Name: kubepods}); err != nil {
		return err
	}
	all := cgroup.Resources{CPUShares: uint64(h.cfg.CPUs * 1024), MemoryLimit: cgroup.Unlimited}
	if h.cfg.EnforcePods {
		all.MemoryLimit = h.cfg.PodsMemoryLimit
	}
	if h.cfg.Pods.Unified() && !h.cfg.TieredMemory {
		// An earlier kubelet may have set memory protection.
		all.Unified = map[string]string{"memory.min": "0", "memory.low": "0"}
	}
	if err := h.cfg.Pods.Create(kubepods, all); err != nil {
		return fmt.Errorf("creating the cgroup of all pods: %w", err)
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		name, r := h.cfg.Names.OfClass(class), cgroup.Resources{CPUShares: 2}
		if h.cfg.Pods.Exists(name) {
			r.CPUShares = 0 // keep the weight, which is updated soon for the running pods
		}
		if class == v1.PodQOSBurstable && all.Unified != nil {
			r.Unified = map[string]string{"memory.low": "0"}
		}
		if err := h.cfg.Pods.Create(name, r); err != nil {
			return fmt.Errorf("creating the cgroup of %s pods: %w", class, err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.cfg.Pods.Dir("memory", kubepods), "memory.swap.max")); err != nil {
		h.cfg.Names.Platform.DisableSwapAccounting()
	}
	if err := h.enforceReserved(); err != nil {
		return err
	}
	return nil
}
