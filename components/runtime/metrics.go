//go:build cgo

package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/cgroup"
	"hyperkube/internal/podnet"
)

// What was cAdvisor's to measure, by CRI (KEP-2371): a kubelet passes it on at
// /metrics/cadvisor under the same names.

// commonLabels are of every metric, before its own.
var commonLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// measured is all that the metrics of a container, or of a pod's network, are
// made of.
type measured struct {
	stats   cgroup.Stats
	details cgroup.Details
	started int64 // nanoseconds
	// used is of the container's own files, disk of the file system that they
	// are on.
	used      uint64
	disk      unix.Statfs_t
	device    string
	processes processes
	traffic   podnet.Traffic
}

// processes is what a container's processes have open.
type processes struct{ count, threads, files, sockets uint64 }

// reading is one value of a metric, with the values of its own labels.
type reading struct {
	value  uint64
	labels []string
}

type metric struct {
	name, help string
	counter    bool
	labels     []string // beside commonLabels
	read       func(*measured) []reading
}

func one(f func(*measured) uint64) func(*measured) []reading {
	return func(m *measured) []reading { return []reading{{value: f(m)}} }
}

func onDevice(f func(*measured) uint64) func(*measured) []reading {
	return func(m *measured) []reading { return []reading{{f(m), []string{deviceName(m.device)}}} }
}

func onLink(f func(*podnet.Traffic) uint64) func(*measured) []reading {
	return func(m *measured) []reading { return []reading{{f(&m.traffic), []string{"eth0"}}} }
}

func ofDevices(f func(cgroup.IO) uint64) func(*measured) []reading {
	return func(m *measured) []reading {
		var out []reading
		for device, io := range m.details.IO {
			out = append(out, reading{f(io), []string{deviceName(device)}})
		}
		return out
	}
}

// deviceName is the path of a block device, by which dashboards tell disks from what
// is none; its numbers, "8:0", if it has no name.
func deviceName(numbers string) string {
	if numbers == "" {
		return ""
	}
	link, err := os.Readlink(filepath.Join("/sys/dev/block", numbers))
	if err != nil {
		return numbers
	}
	return "/dev/" + filepath.Base(link)
}

func seconds(d time.Duration) uint64 { return uint64(d / time.Second) }

// containerMetrics are of each container.
func containerMetrics() []metric {
	device, cpu := []string{"device"}, []string{"cpu"}
	return []metric{
		{"container_blkio_device_usage_total", "Blkio device bytes usage", true, []string{"device", "major", "minor", "operation"}, func(m *measured) []reading {
			var out []reading
			for device, io := range m.details.IO {
				major, minor, _ := strings.Cut(device, ":")
				name := deviceName(device)
				out = append(out, reading{io.ReadBytes, []string{name, major, minor, "Read"}}, reading{io.WrittenBytes, []string{name, major, minor, "Write"}})
			}
			return out
		}},
		{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals", true, nil, one(func(m *measured) uint64 { return m.details.Periods })},
		{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals", true, nil, one(func(m *measured) uint64 { return m.details.Throttled })},
		{"container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled", true, nil, one(func(m *measured) uint64 { return seconds(m.details.ThrottledTime) })},
		{"container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds", true, nil, one(func(m *measured) uint64 { return seconds(m.details.System) })},
		{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds", true, cpu, func(m *measured) []reading {
			return []reading{{m.stats.CPUNanoseconds / uint64(time.Second), []string{"total"}}}
		}},
		{"container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds", true, nil, one(func(m *measured) uint64 { return seconds(m.details.User) })},
		{"container_file_descriptors", "Number of open file descriptors for the container", false, nil, one(func(m *measured) uint64 { return m.processes.files })},
		{"container_fs_inodes_free", "Number of available Inodes", false, device, onDevice(func(m *measured) uint64 { return m.disk.Ffree })},
		{"container_fs_inodes_total", "Number of Inodes", false, device, onDevice(func(m *measured) uint64 { return m.disk.Files })},
		{"container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem", false, device, onDevice(func(m *measured) uint64 { return m.disk.Blocks * uint64(m.disk.Bsize) })},
		{"container_fs_reads_bytes_total", "Cumulative count of bytes read", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.ReadBytes })},
		{"container_fs_reads_total", "Cumulative count of reads completed", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.Reads })},
		{"container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem", false, device, onDevice(func(m *measured) uint64 { return m.used })},
		{"container_fs_writes_bytes_total", "Cumulative count of bytes written", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.WrittenBytes })},
		{"container_fs_writes_total", "Cumulative count of writes completed", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.Writes })},
		{"container_last_seen", "Last time a container was seen by the exporter", false, nil, one(func(m *measured) uint64 { return uint64(m.stats.Time.Unix()) })},
		{"container_memory_cache", "Number of bytes of page cache memory", false, nil, one(func(m *measured) uint64 { return m.details.Cache })},
		{"container_memory_failcnt", "Number of memory usage hits limits", true, nil, one(func(m *measured) uint64 { return m.details.LimitHits })},
		{"container_memory_failures_total", "Cumulative count of memory allocation failures", true, []string{"failure_type", "scope"}, func(m *measured) []reading {
			// Dashboards leave out one of the scopes, which are the same.
			var out []reading
			for _, scope := range []string{"container", "hierarchy"} {
				out = append(out, reading{m.stats.PageFaults, []string{"pgfault", scope}}, reading{m.stats.MajorPageFaults, []string{"pgmajfault", scope}})
			}
			return out
		}},
		{"container_memory_kernel_usage", "Size of kernel memory allocated in bytes", false, nil, one(func(m *measured) uint64 { return m.details.Kernel })},
		{"container_memory_mapped_file", "Size of memory mapped files in bytes", false, nil, one(func(m *measured) uint64 { return m.details.MappedFile })},
		{"container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", false, nil, one(func(m *measured) uint64 { return max(m.details.MaxUsage, m.stats.MemoryUsage) })},
		{"container_memory_rss", "Size of RSS in bytes", false, nil, one(func(m *measured) uint64 { return m.stats.MemoryRSS })},
		{"container_memory_swap", "Container swap usage in bytes", false, nil, one(func(m *measured) uint64 { return m.stats.SwapUsage })},
		{"container_memory_total_active_file_bytes", "Current total active file in bytes", false, nil, one(func(m *measured) uint64 { return m.details.ActiveFile })},
		{"container_memory_total_inactive_file_bytes", "Current total inactive file in bytes", false, nil, one(func(m *measured) uint64 { return m.details.InactiveFile })},
		{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", false, nil, one(func(m *measured) uint64 { return m.stats.MemoryUsage })},
		{"container_memory_working_set_bytes", "Current working set in bytes", false, nil, one(func(m *measured) uint64 { return m.stats.MemoryWorkingSet })},
		{"container_oom_events_total", "Count of out of memory events observed for the container", true, nil, one(func(m *measured) uint64 { return m.stats.OOMKills })},
		{"container_processes", "Number of processes running inside the container", false, nil, one(func(m *measured) uint64 { return m.processes.count })},
		{"container_sockets", "Number of open sockets for the container", false, nil, one(func(m *measured) uint64 { return m.processes.sockets })},
		{"container_spec_cpu_period", "CPU period of the container", false, nil, one(func(m *measured) uint64 { return m.details.CPUPeriod })},
		{"container_spec_cpu_quota", "CPU quota of the container", false, nil, func(m *measured) []reading {
			if m.details.CPUQuota < 0 {
				return nil
			}
			return []reading{{value: uint64(m.details.CPUQuota)}}
		}},
		{"container_spec_cpu_shares", "CPU share of the container", false, nil, one(func(m *measured) uint64 { return m.details.CPUShares })},
		{"container_spec_memory_limit_bytes", "Memory limit for the container", false, nil, one(func(m *measured) uint64 { return m.stats.MemoryLimit })},
		{"container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container", false, nil, one(func(m *measured) uint64 { return m.details.Reservation })},
		{"container_spec_memory_swap_limit_bytes", "Memory swap limit for the container", false, nil, one(func(m *measured) uint64 { return m.details.SwapLimit })},
		{"container_start_time_seconds", "Start time of the container since unix epoch in seconds", false, nil, one(func(m *measured) uint64 { return uint64(m.started / int64(time.Second)) })},
		{"container_threads", "Number of threads running inside the container", false, nil, one(func(m *measured) uint64 { return m.processes.threads })},
		{"container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", false, nil, one(func(m *measured) uint64 { return m.details.PidsLimit })},
	}
}

// sandboxImage stands where others have the image of a sandbox's pause: dashboards
// pass over what has none.
const sandboxImage = "pause"

// networkMetrics are of each pod that has a network of its own.
func networkMetrics() []metric {
	link := []string{"interface"}
	return []metric{
		{"container_network_receive_bytes_total", "Cumulative count of bytes received", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.RxBytes })},
		{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.RxErrors })},
		{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.RxDropped })},
		{"container_network_receive_packets_total", "Cumulative count of packets received", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.RxPackets })},
		{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.TxBytes })},
		{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.TxErrors })},
		{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.TxDropped })},
		{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", true, link, onLink(func(t *podnet.Traffic) uint64 { return t.TxPackets })},
	}
}

// ListMetricDescriptors tells of the metrics that ListPodSandboxMetrics has.
func (r *Runtime) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	resp := &runtimeapi.ListMetricDescriptorsResponse{}
	for _, m := range append(containerMetrics(), networkMetrics()...) {
		resp.Descriptors = append(resp.Descriptors, &runtimeapi.MetricDescriptor{
			Name: m.name, Help: m.help, LabelKeys: append(append([]string{}, commonLabels...), m.labels...)})
	}
	return resp, nil
}

// readings are the values of metrics for who has the common labels.
func readings(metrics []metric, m *measured, common []string, now time.Time) []*runtimeapi.Metric {
	var out []*runtimeapi.Metric
	for _, d := range metrics {
		kind := runtimeapi.MetricType_GAUGE
		if d.counter {
			kind = runtimeapi.MetricType_COUNTER
		}
		for _, r := range d.read(m) {
			out = append(out, &runtimeapi.Metric{Name: d.name, Timestamp: now.UnixNano(), MetricType: kind,
				LabelValues: append(append([]string{}, common...), r.labels...), Value: value(r.value)})
		}
	}
	return out
}

// ListPodSandboxMetrics measures all pods that run.
func (r *Runtime) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: r.podMetrics()}, nil
}

func (r *Runtime) podMetrics() []*runtimeapi.PodSandboxMetrics {
	r.mu.Lock()
	var all []*sandboxState
	for _, s := range r.sandboxes {
		all = append(all, s)
	}
	r.mu.Unlock()
	now := time.Now()
	var out []*runtimeapi.PodSandboxMetrics
	ofContainer, ofNetwork := containerMetrics(), networkMetrics()
	for _, s := range all {
		rec := s.get()
		if rec.Phase != phaseRunning {
			continue
		}
		meta := rec.config.GetMetadata()
		pod := &runtimeapi.PodSandboxMetrics{PodSandboxId: rec.ID}
		own := r.podCgroup(rec.config)
		if own == r.defaultCgroup() { // many pods'
			own = r.sandboxCgroup(rec.config, rec.ID)
		}
		if !hostNetwork(rec.config) {
			if t, err := r.network.Traffic(rec.ID); err == nil {
				pod.Metrics = readings(ofNetwork, &measured{traffic: t},
					[]string{"POD", own, sandboxImage, rec.ID, meta.GetNamespace(), meta.GetName()}, now)
			}
		}
		for _, c := range r.containersOf(rec.ID) {
			m := r.measure(c)
			if m == nil {
				continue
			}
			crec := c.get()
			pod.ContainerMetrics = append(pod.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: crec.ID, Metrics: readings(ofContainer, m,
				[]string{crec.config.GetMetadata().GetName(), crec.Cgroup, crec.ImageRef, crec.ID, meta.GetNamespace(), meta.GetName()}, now)})
		}
		out = append(out, pod)
	}
	return out
}

// measure measures a container; nil if it does not run.
func (r *Runtime) measure(c *containerState) *measured {
	rec := c.get()
	if rec.Phase != phaseRunning {
		return nil
	}
	stats, err := r.cgroups.Stats(rec.Cgroup)
	if err != nil {
		return nil // it ended meanwhile
	}
	m := &measured{stats: stats, details: r.cgroups.Details(rec.Cgroup), started: rec.Started}
	upper := filepath.Join(r.containerDir(c.id), "upper")
	usage, _ := c.disk.get(upper)
	m.used = usage.Bytes
	var st unix.Stat_t
	if err := unix.Stat(upper, &st); err == nil {
		m.device = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	_ = unix.Statfs(upper, &m.disk) // zeros say that it is unknown
	m.processes = r.countProcesses(rec.Cgroup)
	return m
}

// countProcesses looks at each process of a container. Those that end
// meanwhile count for less.
func (r *Runtime) countProcesses(cgroupPath string) processes {
	pids, err := r.cgroups.Pids(cgroupPath)
	if err != nil {
		return processes{}
	}
	p := processes{count: uint64(len(pids))}
	for _, pid := range pids {
		if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err == nil {
			p.threads += uint64(len(tasks))
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		p.files += uint64(len(files))
		for _, f := range files {
			if target, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(target, "socket:") {
				p.sockets++
			}
		}
	}
	return p
}
