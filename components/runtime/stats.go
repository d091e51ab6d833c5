//go:build cgo

package runtime

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/podnet"
)

// cpuSample stores the CPU time of a container or pod at a point in time, to compute its current CPU usage. The caller
// must hold the lock of the container or sandbox.
type cpuSample struct {
	time  time.Time
	nanos uint64
	rate  uint64
}

// rateWindow is the minimum time between the two samples from which cpuSample computes a rate. Shorter intervals would
// be inaccurate.
const rateWindow = time.Second

// next adds a sample of the total CPU time nanos at the time now. It returns the CPU usage since the previous sample,
// in nanoseconds of CPU time per second. If less than rateWindow has passed, it returns the previous rate. It returns 0
// for the first sample and after a restart of the counter.
func (s *cpuSample) next(now time.Time, nanos uint64) uint64 {
	if s.time.IsZero() || nanos < s.nanos {
		*s = cpuSample{time: now, nanos: nanos}
		return 0
	}
	if elapsed := now.Sub(s.time); elapsed >= rateWindow {
		s.rate = uint64(float64(nanos-s.nanos) / elapsed.Seconds())
		s.time, s.nanos = now, nanos
	}
	return s.rate
}

// diskSample caches the disk usage of a container's writable layer, because measuring it walks all files. It has its
// own lock, because a walk may take minutes, during which the container must be visible, stoppable and removable.
type diskSample struct {
	mu      sync.Mutex // guards the fields below
	usage   images.Usage
	expires time.Time // expiry of usage
	taken   time.Time
}

// get returns the disk usage of dir and the time of the measurement. It measures again if the cached value is older
// than 100 times the duration of the last measurement. If that fails, it returns the previous value.
func (s *diskSample) get(dir string) (images.Usage, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.expires) {
		return s.usage, s.taken
	}
	usage, err := images.DiskUsage(dir)
	if err != nil {
		return s.usage, s.taken
	}
	// Limit the measurement to 1 % of the time.
	s.usage, s.taken, s.expires = usage, now, time.Now().Add(100*time.Since(now))
	return s.usage, s.taken
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// cpuUsage converts CPU statistics to CRI. rate is the current usage in billionths of a core. p is nil if the kernel
// does not measure pressure.
func cpuUsage(s cgroup.Stats, rate uint64, p *cgroup.Pressure) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: s.Time.UnixNano(), UsageCoreNanoSeconds: value(s.CPUNanoseconds), UsageNanoCores: value(rate), Psi: psiStats(p)}
}

// psiStats converts pressure stall information to CRI. It returns nil if p is nil, which means that the kernel does not
// support it.
func psiStats(p *cgroup.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	one := func(s cgroup.Stall) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: uint64(s.Total), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &runtimeapi.PsiStats{Full: one(p.Full), Some: one(p.Some)}
}

// ioUsage converts the pressure of I/O to CRI. It returns nil if p is nil, which means that the kernel does not measure
// it.
func ioUsage(s cgroup.Stats, p *cgroup.Pressure) *runtimeapi.IoUsage {
	if p == nil {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: s.Time.UnixNano(), Psi: psiStats(p)}
}

// memoryUsage converts memory statistics to CRI. The available memory is set only if the cgroup has a limit. p is nil
// if the kernel does not measure pressure.
func memoryUsage(s cgroup.Stats, p *cgroup.Pressure) *runtimeapi.MemoryUsage {
	m := &runtimeapi.MemoryUsage{
		Timestamp: s.Time.UnixNano(), WorkingSetBytes: value(s.MemoryWorkingSet), UsageBytes: value(s.MemoryUsage),
		RssBytes: value(s.MemoryRSS), PageFaults: value(s.PageFaults), MajorPageFaults: value(s.MajorPageFaults), Psi: psiStats(p),
	}
	if s.MemoryLimit > s.MemoryWorkingSet {
		m.AvailableBytes = value(s.MemoryLimit - s.MemoryWorkingSet)
	}
	return m
}

// trafficCounter returns the network traffic of pods. podnet.Network implements it.
type trafficCounter interface {
	// Traffic returns the traffic of the pod with this sandbox ID.
	Traffic(id string) (podnet.Traffic, error)
}

// statsService implements the CRI calls for the resource usage of containers and pods.
type statsService struct {
	*host
	inventory *inventory
	network   trafficCounter
}

// containerStats returns the resource usage of a container. For a container that does not run, it contains only the
// disk usage.
func (ss *statsService) containerStats(c *containerState) (*runtimeapi.ContainerStats, error) {
	rec := c.get()
	usage, taken := c.diskUsage.get(filepath.Join(ss.containerDir(c.id), "upper"))
	out := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: rec.ID, Metadata: rec.config.GetMetadata(), Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations()},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: taken.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: ss.path("containers")},
			UsedBytes: value(usage.Bytes), InodesUsed: value(usage.Inodes),
		},
	}
	if rec.Phase != phaseRunning {
		return out, nil
	}
	s, err := ss.cgroups.Stats(rec.Cgroup)
	if errors.Is(err, cgroup.ErrNotExist) {
		return out, nil // it exited in the meantime
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	rate := c.cpu.next(s.Time, s.CPUNanoseconds)
	c.mu.Unlock()
	p := ss.cgroups.Pressures(rec.Cgroup)
	out.Cpu, out.Memory, out.Io = cpuUsage(s, rate, p.CPU), memoryUsage(s, p.Memory), ioUsage(s, p.IO)
	out.Swap = &runtimeapi.SwapUsage{Timestamp: s.Time.UnixNano(), SwapUsageBytes: value(s.SwapUsage)}
	return out, nil
}

// ContainerStats returns the stats of a container.
func (ss *statsService) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := ss.inventory.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	s, err := ss.containerStats(c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s}, nil
}

// ListContainerStats returns the stats of the containers that match the filter.
func (ss *statsService) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	list, err := ss.listContainerStats(req.GetFilter())
	return &runtimeapi.ListContainerStatsResponse{Stats: list}, err
}

func (ss *statsService) listContainerStats(filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	var list []*runtimeapi.ContainerStats
	for _, c := range ss.inventory.allContainers() {
		if !strings.HasPrefix(c.id, filter.GetId()) || !strings.HasPrefix(c.sandbox, filter.GetPodSandboxId()) ||
			!labelsMatch(filter.GetLabelSelector(), c.get().config.GetLabels()) {
			continue
		}
		s, err := ss.containerStats(c)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// podStats returns the resource usage of a pod and its running containers. It returns nil without an error if the pod
// does not run.
func (ss *statsService) podStats(s *sandboxState) (*runtimeapi.PodSandboxStats, error) {
	rec := s.get()
	if rec.Phase != phaseRunning {
		return nil, nil
	}
	out := &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: rec.ID, Metadata: rec.config.GetMetadata(), Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations()},
		Linux:      &runtimeapi.LinuxPodSandboxStats{},
	}
	st, p, err := ss.podUsage(rec)
	if errors.Is(err, cgroup.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	rate := s.cpu.next(st.Time, st.CPUNanoseconds)
	s.mu.Unlock()
	out.Linux.Cpu, out.Linux.Memory, out.Linux.Io = cpuUsage(st, rate, p.CPU), memoryUsage(st, p.Memory), ioUsage(st, p.IO)
	out.Linux.Process = &runtimeapi.ProcessUsage{Timestamp: st.Time.UnixNano(), ProcessCount: value(st.Pids)}
	if !hostNetwork(rec.config) {
		if t, err := ss.network.Traffic(rec.ID); err == nil {
			link := &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: value(t.RxBytes), RxErrors: value(t.RxErrors),
				TxBytes: value(t.TxBytes), TxErrors: value(t.TxErrors)}
			out.Linux.Network = &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano(), DefaultInterface: link}
		}
	}
	for _, c := range ss.inventory.containersOf(rec.ID) {
		if c.get().Phase != phaseRunning {
			continue
		}
		st, err := ss.containerStats(c)
		if err != nil {
			return nil, err
		}
		if st.Cpu != nil {
			out.Linux.Containers = append(out.Linux.Containers, st)
		}
	}
	return out, nil
}

// podUsage returns the resource usage of all processes of a pod, from the pod's cgroup. A pod without its own cgroup,
// as `crictl runp` creates it, gets the sum of its sandbox and containers, and no pressure stall information.
func (ss *statsService) podUsage(rec sandboxRecord) (cgroup.Stats, cgroup.Pressures, error) {
	if pod := ss.podCgroup(rec.config); pod != ss.defaultCgroup() {
		st, err := ss.cgroups.Stats(pod)
		if err != nil {
			return cgroup.Stats{}, cgroup.Pressures{}, err
		}
		return st, ss.cgroups.Pressures(pod), nil
	}
	sum, err := ss.cgroups.Stats(ss.sandboxCgroup(rec.config, rec.ID))
	if err != nil {
		return cgroup.Stats{}, cgroup.Pressures{}, err
	}
	for _, c := range ss.inventory.containersOf(rec.ID) {
		st, err := ss.cgroups.Stats(c.get().Cgroup)
		if errors.Is(err, cgroup.ErrNotExist) {
			continue // it has exited
		}
		if err != nil {
			return cgroup.Stats{}, cgroup.Pressures{}, err
		}
		sum.CPUNanoseconds += st.CPUNanoseconds
		sum.MemoryUsage += st.MemoryUsage
		sum.MemoryWorkingSet += st.MemoryWorkingSet
		sum.MemoryRSS += st.MemoryRSS
		sum.PageFaults += st.PageFaults
		sum.MajorPageFaults += st.MajorPageFaults
		sum.SwapUsage += st.SwapUsage
		sum.Pids += st.Pids
		sum.OOMKills += st.OOMKills
	}
	return sum, cgroup.Pressures{}, nil
}

// PodSandboxStats returns the resource usage of a pod. The response is empty if the pod does not run.
func (ss *statsService) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := ss.podStats(s)
	return &runtimeapi.PodSandboxStatsResponse{Stats: st}, err
}

// ListPodSandboxStats returns the stats of the running pods that match the filter.
func (ss *statsService) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	list, err := ss.listPodStats(req.GetFilter())
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: list}, err
}

func (ss *statsService) listPodStats(filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	all := slices.DeleteFunc(ss.inventory.allSandboxes(), func(s *sandboxState) bool {
		rec := s.get()
		return !strings.HasPrefix(rec.ID, filter.GetId()) || !labelsMatch(filter.GetLabelSelector(), rec.config.GetLabels())
	})
	var list []*runtimeapi.PodSandboxStats
	for _, s := range all {
		st, err := ss.podStats(s)
		if err != nil {
			return nil, err
		}
		if st != nil {
			list = append(list, st)
		}
	}
	return list, nil
}
