// Package stats measures the resource usage of the node and its pods.
package stats

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/internal/host/cgroup"
)

// Provider measures the resource usage of the node, its pods and their containers. The container runtime
// measures containers. Its methods are safe for concurrent use.
type Provider struct {
	CRI      *cri.Client
	NodeName string
	// Root is a path on the file system of pods. Logs is the directory of pod logs; if it is empty,
	// logs are not measured.
	Root, Logs string
	// Images returns a path on the file system of images, or "" if it is unknown. If it is nil,
	// Root is used.
	Images func() string
	// PodInterfacePrefix is the name prefix of pods' network interfaces, which are excluded from the node's.
	// It may be empty.
	PodInterfacePrefix string
	// Pods returns the node's pods. Their start times are reported.
	Pods func() []*v1.Pod
	// Boot is the start time of the node's statistics.
	Boot time.Time
	// RuntimePID returns the process ID of the container runtime. It may be nil.
	RuntimePID func() (int, error)
	// PodsCgroup returns the statistics of the cgroup of all pods. It may be nil.
	PodsCgroup func() (cgroup.Stats, error)
	// Pressures returns the pressure of the machine. It may be nil.
	Pressures func() cgroup.Pressures

	mu   sync.Mutex // guards last
	last map[string]sample

	imagesMu  sync.Mutex // guards the following fields
	imagesUse *runtimeapi.FilesystemUsage
	imagesAt  time.Time
}

// sample is a measurement of the total CPU time of a container or pod in nanoseconds. The difference from the next
// measurement yields the CPU usage.
type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
}

// Summary returns the current resource usage of the node and all pods with a ready sandbox, for
// /stats/summary, metrics and eviction. It returns an error if the runtime fails.
func (p *Provider) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	out, _, err := p.summary(ctx)
	return out, err
}

// containerDetails is data of a container for /metrics/cadvisor that CRI's metrics do not include.
type containerDetails struct {
	nanos           *runtimeapi.UInt64Value // CPU time; may be nil
	cpu, memory, io *statsv1alpha1.PSIStats // may be nil
}

// summary is Summary that also returns the details of each container by ID.
func (p *Provider) summary(ctx context.Context) (*statsv1alpha1.Summary, map[string]containerDetails, error) {
	now := time.Now()
	out := &statsv1alpha1.Summary{Node: p.node(now), Pods: []statsv1alpha1.PodStats{}}
	boxes, err := p.sandboxes(ctx)
	if err != nil {
		return nil, nil, err
	}
	known := map[string]containerDetails{}
	started := map[string]metav1.Time{}
	for _, pod := range p.Pods() {
		if pod.Status.StartTime != nil {
			started[string(pod.UID)] = *pod.Status.StartTime
		}
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				if r := list[i].State.Running; r != nil {
					started[string(pod.UID)+"/"+list[i].Name] = r.StartedAt
				}
			}
		}
	}
	seen := map[string]bool{"node": true}
	for _, box := range boxes {
		meta := box.GetAttributes().GetMetadata()
		pod := statsv1alpha1.PodStats{
			PodRef:     statsv1alpha1.PodReference{Name: meta.GetName(), Namespace: meta.GetNamespace(), UID: meta.GetUid()},
			StartTime:  started[meta.GetUid()],
			Containers: []statsv1alpha1.ContainerStats{},
		}
		linux := box.GetLinux()
		for _, c := range linux.GetContainers() {
			cs := statsv1alpha1.ContainerStats{Name: c.GetAttributes().GetMetadata().GetName(), StartTime: pod.StartTime}
			if at, ok := started[meta.GetUid()+"/"+cs.Name]; ok {
				cs.StartTime = at
			}
			id := c.GetAttributes().GetId()
			seen[id] = true
			cs.Swap = swap(c.GetSwap(), now)
			cs.CPU, cs.Memory, cs.IO = p.cpu(id, c.GetCpu(), now), memory(c.GetMemory(), now), waits(c.GetIo(), now)
			one := containerDetails{nanos: c.GetCpu().GetUsageCoreNanoSeconds()}
			one.cpu, one.memory, one.io = pressureOf(cs.CPU, cs.Memory, cs.IO)
			known[id] = one
			if fs := c.GetWritableLayer(); fs != nil {
				// Writable layers are on the file system of images.
				if cs.Rootfs = FileSystem(p.images(), now); cs.Rootfs == nil {
					cs.Rootfs = &statsv1alpha1.FsStats{}
				}
				cs.Rootfs.Time, cs.Rootfs.UsedBytes, cs.Rootfs.InodesUsed = at(fs.GetTimestamp(), now), value(fs.GetUsedBytes()), value(fs.GetInodesUsed())
			}
			cs.Logs = p.logs(pod.PodRef, cs.Name, now)
			pod.Containers = append(pod.Containers, cs)
		}
		id := box.GetAttributes().GetId()
		seen[id] = true
		pod.CPU, pod.Memory, pod.IO = p.cpu(id, linux.GetCpu(), now), memory(linux.GetMemory(), now), waits(linux.GetIo(), now)
		if pod.CPU == nil {
			pod.CPU = sumCPU(pod.Containers, now)
		}
		if pod.Memory == nil {
			pod.Memory = sumMemory(pod.Containers, now)
		}
		pod.Swap = sumSwap(pod.Containers, now)
		pod.Network = network(linux.GetNetwork(), now)
		if n := linux.GetProcess().GetProcessCount(); n != nil {
			pod.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: value(n)}
		}
		pod.EphemeralStorage = p.ephemeral(pod, now)
		out.Pods = append(out.Pods, pod)
	}
	p.mu.Lock()
	for id := range p.last {
		if !seen[id] && !strings.HasPrefix(id, systemPrefix) {
			delete(p.last, id)
		}
	}
	p.mu.Unlock()
	return out, known, nil
}

// sandboxes returns the runtime's statistics of all sandboxes with their containers. For a runtime that does
// not support that call, they are assembled from the lists of sandboxes and of container statistics.
func (p *Provider) sandboxes(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	resp, err := p.CRI.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err == nil {
		return resp.Stats, nil
	}
	if !cri.IsUnimplemented(err) {
		return nil, fmt.Errorf("listing pod sandbox stats: %w", err)
	}
	boxes, err := p.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
	})
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	containers, err := p.CRI.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing container stats: %w", err)
	}
	byPod := map[string][]*runtimeapi.ContainerStats{}
	for _, c := range cri.Running(containers.Stats) {
		uid := c.GetAttributes().GetLabels()[cri.LabelPodUID]
		byPod[uid] = append(byPod[uid], c)
	}
	var out []*runtimeapi.PodSandboxStats
	for _, b := range boxes.Items {
		out = append(out, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{Id: b.Id, Metadata: b.Metadata, Labels: b.Labels},
			Linux:      &runtimeapi.LinuxPodSandboxStats{Containers: byPod[b.GetMetadata().GetUid()]},
		})
	}
	return out, nil
}

// node returns the resource usage of the node. Values that cannot be measured are missing.
func (p *Provider) node(now time.Time) statsv1alpha1.NodeStats {
	out := statsv1alpha1.NodeStats{NodeName: p.NodeName, StartTime: metav1.NewTime(p.Boot)}
	if n, err := nodeCPU(); err == nil {
		out.CPU = &statsv1alpha1.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: &n, UsageNanoCores: p.rate("node", n, now)}
	}
	if info, err := nodestatus.MemInfo(); err == nil {
		total, available := uint64(info["MemTotal"]), uint64(info["MemAvailable"])
		used := total - uint64(info["MemFree"])
		working := total - available
		rss := uint64(info["AnonPages"])
		free, swapped := uint64(info["SwapFree"]), uint64(info["SwapTotal"]-info["SwapFree"])
		out.Swap = &statsv1alpha1.SwapStats{Time: metav1.NewTime(now), SwapAvailableBytes: &free, SwapUsageBytes: &swapped}
		out.Memory = &statsv1alpha1.MemoryStats{Time: metav1.NewTime(now), AvailableBytes: &available, UsageBytes: &used, WorkingSetBytes: &working, RSSBytes: &rss}
	}
	if p.Pressures != nil {
		all := p.Pressures()
		if out.CPU != nil {
			out.CPU.PSI = fromCgroupPressure(all.CPU)
		}
		if out.Memory != nil {
			out.Memory.PSI = fromCgroupPressure(all.Memory)
		}
		if io := fromCgroupPressure(all.IO); io != nil {
			out.IO = &statsv1alpha1.IOStats{Time: metav1.NewTime(now), PSI: io}
		}
	}
	out.SystemContainers = p.systemContainers(now)
	out.Fs = FileSystem(p.Root, now)
	out.Runtime = &statsv1alpha1.RuntimeStats{ImageFs: FileSystem(p.images(), now), ContainerFs: FileSystem(p.images(), now)}
	out.Network = p.nodeNetwork(now)
	if running, most, err := Processes(); err == nil {
		out.Rlimit = &statsv1alpha1.RlimitStats{Time: metav1.NewTime(now), MaxPID: &most, NumOfRunningProcesses: &running}
	}
	return out
}

// Processes returns the current and the maximum number of processes and threads of the machine.
func Processes() (running, most int64, err error) {
	for _, name := range []string{"pid_max", "threads-max"} {
		raw, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return 0, 0, fmt.Errorf("counting processes: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("counting processes: %w", err)
		}
		if most == 0 || n < most {
			most = n
		}
	}
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, fmt.Errorf("counting processes: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("counting processes: unexpected %q", raw)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	if running, err = strconv.ParseInt(all, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("counting processes: %w", err)
	}
	return running, most, nil
}

// nodeCPU returns the CPU time used by all processes since boot, in nanoseconds.
func nodeCPU() (uint64, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	scan.Scan()
	fields := strings.Fields(scan.Text())
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("unexpected first line of /proc/stat")
	}
	var ticks uint64
	for i, s := range fields[1:9] {
		if i == 3 || i == 4 {
			continue // idle and iowait
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks * uint64(time.Second/100), nil
}

// images returns a path on the file system of images. It is Root if Images is not set, and "" if it is unknown.
func (p *Provider) images() string {
	if p.Images == nil {
		return p.Root
	}
	return p.Images()
}

// imageUsageTTL is how long the disk usage of images is cached, because computing it is expensive for
// the runtime.
const imageUsageTTL = 30 * time.Second

// SetImageUsage sets the disk usage of images in s to the value that the runtime reports, instead of the usage
// of their whole file system. It changes nothing if the runtime reports no file system of images. The value is
// cached for imageUsageTTL.
func (p *Provider) SetImageUsage(ctx context.Context, s *statsv1alpha1.Summary) error {
	p.imagesMu.Lock()
	defer p.imagesMu.Unlock()
	if p.imagesUse == nil || time.Since(p.imagesAt) > imageUsageTTL {
		resp, err := p.CRI.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err != nil {
			return fmt.Errorf("getting image file system from runtime: %w", err)
		}
		if len(resp.GetImageFilesystems()) == 0 {
			return nil
		}
		p.imagesUse, p.imagesAt = resp.ImageFilesystems[0], time.Now()
	}
	for _, fs := range []*statsv1alpha1.FsStats{s.Node.Runtime.ImageFs, s.Node.Runtime.ContainerFs} {
		if fs != nil {
			fs.Time = at(p.imagesUse.GetTimestamp(), p.imagesAt)
			fs.UsedBytes, fs.InodesUsed = value(p.imagesUse.GetUsedBytes()), value(p.imagesUse.GetInodesUsed())
		}
	}
	return nil
}

// nodeNetwork returns the traffic of the node's network interfaces, without loopback and those of pods, or nil
// if it is unknown. The default interface is eth0 or, if there is none, the first one.
func (p *Provider) nodeNetwork(now time.Time) *statsv1alpha1.NetworkStats {
	raw, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil
	}
	out := &statsv1alpha1.NetworkStats{Time: metav1.NewTime(now)}
	for line := range strings.SplitSeq(string(raw), "\n") {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 11 || name == "lo" || strings.HasPrefix(name, "veth") || p.PodInterfacePrefix != "" && strings.HasPrefix(name, p.PodInterfacePrefix) {
			continue
		}
		num := func(i int) *uint64 {
			n, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			return &n
		}
		one := statsv1alpha1.InterfaceStats{Name: name, RxBytes: num(0), RxErrors: num(2), TxBytes: num(8), TxErrors: num(10)}
		out.Interfaces = append(out.Interfaces, one)
		if out.InterfaceStats.Name == "" || name == "eth0" {
			out.InterfaceStats = one
		}
	}
	return out
}

// FileSystem returns the size and usage of the file system of path, or nil if it cannot be read.
func FileSystem(path string, now time.Time) *statsv1alpha1.FsStats {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil
	}
	size := uint64(fs.Bsize)
	available, capacity, used := fs.Bavail*size, fs.Blocks*size, (fs.Blocks-fs.Bfree)*size
	inodes, free := fs.Files, fs.Ffree
	inodesUsed := inodes - free
	return &statsv1alpha1.FsStats{
		Time: metav1.NewTime(now), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		InodesFree: &free, Inodes: &inodes, InodesUsed: &inodesUsed,
	}
}

// ephemeral returns the local storage usage of a pod: writable layers, logs, emptyDir volumes and files of
// the kubelet. It returns nil if the file system of pods cannot be read.
func (p *Provider) ephemeral(pod statsv1alpha1.PodStats, now time.Time) *statsv1alpha1.FsStats {
	out := FileSystem(p.Root, now)
	if out == nil {
		return nil
	}
	used, inodes := DiskUsage(filepath.Join(p.Root, "pods", pod.PodRef.UID, "volumes", "kubernetes.io~empty-dir"))
	others, more := p.otherUsage(pod.PodRef.UID)
	used, inodes = used+others, inodes+more
	for i := range pod.Containers {
		if fs := pod.Containers[i].Rootfs; fs != nil {
			if fs.UsedBytes != nil {
				used += *fs.UsedBytes
			}
			if fs.InodesUsed != nil {
				inodes += *fs.InodesUsed
			}
		}
		if l := pod.Containers[i].Logs; l != nil {
			used, inodes = used+*l.UsedBytes, inodes+*l.InodesUsed
		}
	}
	out.UsedBytes, out.InodesUsed = &used, &inodes
	return out
}

// logs returns the disk usage of a container's logs, or nil if it is unknown.
func (p *Provider) logs(pod statsv1alpha1.PodReference, container string, now time.Time) *statsv1alpha1.FsStats {
	if p.Logs == "" {
		return nil
	}
	out := FileSystem(p.Logs, now)
	if out == nil {
		return nil
	}
	used, inodes := DiskUsage(p.LogDir(pod.Namespace, pod.Name, pod.UID, container))
	out.UsedBytes, out.InodesUsed = &used, &inodes
	return out
}

// otherUsage returns the disk usage of a pod apart from writable layers, logs and emptyDir volumes: its
// ConfigMaps and hosts file.
func (p *Provider) otherUsage(uid string) (bytes, inodes uint64) {
	for _, name := range []string{"volumes/kubernetes.io~configmap", "etc-hosts"} {
		b, i := DiskUsage(filepath.Join(p.Root, "pods", uid, name))
		bytes, inodes = bytes+b, inodes+i
	}
	return bytes, inodes
}

// OtherFiles returns the disk usage of the pod with that UID, in bytes, apart from writable layers, logs and
// emptyDir volumes: the files of its ConfigMaps and its hosts file. Eviction adds it to the other usage.
func (p *Provider) OtherFiles(uid string) int64 {
	bytes, _ := p.otherUsage(uid)
	return int64(bytes)
}

// LogDir returns the log directory of a pod's container.
func (p *Provider) LogDir(namespace, pod, uid, container string) string {
	return filepath.Join(p.Logs, namespace+"_"+pod+"_"+uid, container)
}

// EmptyDir returns the path of the emptyDir volume of that name of the pod with that UID.
func (p *Provider) EmptyDir(uid, volume string) string {
	return filepath.Join(p.Root, "pods", uid, "volumes", "kubernetes.io~empty-dir", volume)
}

// DiskUsage returns the disk usage of a directory tree, without other file systems mounted in it. Files that
// cannot be read are not counted.
func DiskUsage(root string) (bytes, inodes uint64) {
	var top unix.Stat_t
	if unix.Lstat(root, &top) != nil {
		return 0, 0
	}
	walk(root, top.Dev, &bytes, &inodes)
	return bytes, inodes
}

// walk adds the disk usage of path, and of everything below it that is on the device dev, to *bytes and
// *inodes. Other file systems mounted there and files that cannot be read are skipped.
func walk(path string, dev uint64, bytes, inodes *uint64) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Dev != dev {
		return
	}
	*bytes += uint64(st.Blocks) * 512
	*inodes++
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	for _, e := range entries {
		walk(filepath.Join(path, e.Name()), dev, bytes, inodes)
	}
}

// cpu converts the CPU usage of the container or sandbox id that CRI reports, and computes the rate if CRI
// does not report it. It returns nil if c has no CPU time.
func (p *Provider) cpu(id string, c *runtimeapi.CpuUsage, now time.Time) *statsv1alpha1.CPUStats {
	if c == nil || c.UsageCoreNanoSeconds == nil {
		return nil
	}
	n := c.UsageCoreNanoSeconds.Value
	out := &statsv1alpha1.CPUStats{Time: at(c.Timestamp, now), UsageCoreNanoSeconds: &n, PSI: fromCRIPressure(c.Psi)}
	if c.UsageNanoCores != nil {
		out.UsageNanoCores = value(c.UsageNanoCores)
	} else {
		out.UsageNanoCores = p.rate(id, n, out.Time.Time)
	}
	return out
}

// rate returns the CPU usage of the container or pod id, in nanoseconds of CPU time per second, since the last
// call, and stores nanos, the total CPU time at now, for the next call. It returns nil on the first call for an id,
// and the previous result if the last sample is less than a second old.
func (p *Provider) rate(id string, nanos uint64, now time.Time) *uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[string]sample{}
	}
	old, ok := p.last[id]
	if !ok {
		p.last[id] = sample{at: now, nanos: nanos}
		return nil
	}
	gap := now.Sub(old.at)
	if gap < time.Second || nanos < old.nanos {
		if nanos < old.nanos {
			p.last[id] = sample{at: now, nanos: nanos}
		}
		return &old.rate
	}
	r := uint64(float64(nanos-old.nanos) / gap.Seconds())
	p.last[id] = sample{at: now, nanos: nanos, rate: r}
	return &r
}
