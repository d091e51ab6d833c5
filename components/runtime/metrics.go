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

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/podnet"
)

// Container metrics that cAdvisor used to collect, served over CRI (KEP-2371). The kubelet exposes
// them at /metrics/cadvisor under the same names.

// commonLabels are the first labels of every metric.
var commonLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// measurement contains the raw data from which the metrics of one container, or of the network of one pod, are
// computed. In the latter case only traffic is set.
type measurement struct {
	stats   cgroup.Stats
	details cgroup.Details
	started int64 // nanoseconds since the epoch
	// used is the disk usage of the container's writable layer. disk describes its file system.
	used      uint64
	disk      unix.Statfs_t
	device    string
	processes processes
	traffic   podnet.Traffic
}

// processes counts a container's processes, threads and open files.
type processes struct{ count, threads, files, sockets uint64 }

// metricValue is one value of a metric, with the values of metric.labels in the same order.
type metricValue struct {
	value  uint64
	labels []string
}

// metric describes one metric of ListPodSandboxMetrics, and how to read its values from a measurement.
type metric struct {
	name, help string
	counter    bool
	labels     []string // in addition to commonLabels
	read       func(*measurement) []metricValue
}

// singleValue returns the read function of a metric with one value and no labels other than commonLabels. f returns
// the value.
func singleValue(f func(*measurement) uint64) func(*measurement) []metricValue {
	return func(m *measurement) []metricValue { return []metricValue{{value: f(m)}} }
}

// onDevice returns the read function of a metric with one value, labeled with the device of the container's
// writable layer. f returns the value.
func onDevice(f func(*measurement) uint64) func(*measurement) []metricValue {
	return func(m *measurement) []metricValue { return []metricValue{{f(m), []string{deviceName(m.device)}}} }
}

// onLink returns the read function of a metric with one value, labeled with the pod's network interface. f returns
// the value from the interface's traffic.
func onLink(f func(*podnet.Traffic) uint64) func(*measurement) []metricValue {
	return func(m *measurement) []metricValue { return []metricValue{{f(&m.traffic), []string{"eth0"}}} }
}

// ofDevices returns the read function of a metric with one value for each block device that the container has used.
// f returns the value from the device's I/O.
func ofDevices(f func(cgroup.IO) uint64) func(*measurement) []metricValue {
	return func(m *measurement) []metricValue {
		var out []metricValue
		for device, io := range m.details.IO {
			out = append(out, metricValue{f(io), []string{deviceName(device)}})
		}
		return out
	}
}

// deviceName returns the path of a block device, such as "/dev/sda", which dashboards use to select disks. numbers are
// its major and minor number, such as "8:0". They are returned unchanged if the device has no name.
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

// containerMetrics returns the descriptions of the metrics that are reported for each container.
func containerMetrics() []metric {
	device, cpu := []string{"device"}, []string{"cpu"}
	return []metric{
		{"container_blkio_device_usage_total", "Blkio device bytes usage", true, []string{"device", "major", "minor", "operation"}, func(m *measurement) []metricValue {
			var out []metricValue
			for device, io := range m.details.IO {
				major, minor, _ := strings.Cut(device, ":")
				name := deviceName(device)
				out = append(out, metricValue{io.ReadBytes, []string{name, major, minor, "Read"}}, metricValue{io.WrittenBytes, []string{name, major, minor, "Write"}})
			}
			return out
		}},
		{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals", true, nil, singleValue(func(m *measurement) uint64 { return m.details.Periods })},
		{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals", true, nil, singleValue(func(m *measurement) uint64 { return m.details.Throttled })},
		{"container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled", true, nil, singleValue(func(m *measurement) uint64 { return seconds(m.details.ThrottledTime) })},
		{"container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds", true, nil, singleValue(func(m *measurement) uint64 { return seconds(m.details.System) })},
		{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds", true, cpu, func(m *measurement) []metricValue {
			return []metricValue{{m.stats.CPUNanoseconds / uint64(time.Second), []string{"total"}}}
		}},
		{"container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds", true, nil, singleValue(func(m *measurement) uint64 { return seconds(m.details.User) })},
		{"container_file_descriptors", "Number of open file descriptors for the container", false, nil, singleValue(func(m *measurement) uint64 { return m.processes.files })},
		{"container_fs_inodes_free", "Number of available Inodes", false, device, onDevice(func(m *measurement) uint64 { return m.disk.Ffree })},
		{"container_fs_inodes_total", "Number of Inodes", false, device, onDevice(func(m *measurement) uint64 { return m.disk.Files })},
		{"container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem", false, device, onDevice(func(m *measurement) uint64 { return m.disk.Blocks * uint64(m.disk.Bsize) })},
		{"container_fs_reads_bytes_total", "Cumulative count of bytes read", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.ReadBytes })},
		{"container_fs_reads_total", "Cumulative count of reads completed", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.Reads })},
		{"container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem", false, device, onDevice(func(m *measurement) uint64 { return m.used })},
		{"container_fs_writes_bytes_total", "Cumulative count of bytes written", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.WrittenBytes })},
		{"container_fs_writes_total", "Cumulative count of writes completed", true, device, ofDevices(func(io cgroup.IO) uint64 { return io.Writes })},
		{"container_last_seen", "Last time a container was seen by the exporter", false, nil, singleValue(func(m *measurement) uint64 { return uint64(m.stats.Time.Unix()) })},
		{"container_memory_cache", "Number of bytes of page cache memory", false, nil, singleValue(func(m *measurement) uint64 { return m.details.Cache })},
		{"container_memory_failcnt", "Number of memory usage hits limits", true, nil, singleValue(func(m *measurement) uint64 { return m.details.LimitHits })},
		{"container_memory_failures_total", "Cumulative count of memory allocation failures", true, []string{"failure_type", "scope"}, func(m *measurement) []metricValue {
			// The scopes have equal values; dashboards select one of them.
			var out []metricValue
			for _, scope := range []string{"container", "hierarchy"} {
				out = append(out, metricValue{m.stats.PageFaults, []string{"pgfault", scope}}, metricValue{m.stats.MajorPageFaults, []string{"pgmajfault", scope}})
			}
			return out
		}},
		{"container_memory_kernel_usage", "Size of kernel memory allocated in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.details.Kernel })},
		{"container_memory_mapped_file", "Size of memory mapped files in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.details.MappedFile })},
		{"container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", false, nil, singleValue(func(m *measurement) uint64 { return max(m.details.MaxUsage, m.stats.MemoryUsage) })},
		{"container_memory_rss", "Size of RSS in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.stats.MemoryRSS })},
		{"container_memory_swap", "Container swap usage in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.stats.SwapUsage })},
		{"container_memory_total_active_file_bytes", "Current total active file in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.details.ActiveFile })},
		{"container_memory_total_inactive_file_bytes", "Current total inactive file in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.details.InactiveFile })},
		{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", false, nil, singleValue(func(m *measurement) uint64 { return m.stats.MemoryUsage })},
		{"container_memory_working_set_bytes", "Current working set in bytes", false, nil, singleValue(func(m *measurement) uint64 { return m.stats.MemoryWorkingSet })},
		{"container_oom_events_total", "Count of out of memory events observed for the container", true, nil, singleValue(func(m *measurement) uint64 { return m.stats.OOMKills })},
		{"container_processes", "Number of processes running inside the container", false, nil, singleValue(func(m *measurement) uint64 { return m.processes.count })},
		{"container_sockets", "Number of open sockets for the container", false, nil, singleValue(func(m *measurement) uint64 { return m.processes.sockets })},
		{"container_spec_cpu_period", "CPU period of the container", false, nil, singleValue(func(m *measurement) uint64 { return m.details.CPUPeriod })},
		{"container_spec_cpu_quota", "CPU quota of the container", false, nil, func(m *measurement) []metricValue {
			if m.details.CPUQuota < 0 {
				return nil
			}
			return []metricValue{{value: uint64(m.details.CPUQuota)}}
		}},
		{"container_spec_cpu_shares", "CPU share of the container", false, nil, singleValue(func(m *measurement) uint64 { return m.details.CPUShares })},
		{"container_spec_memory_limit_bytes", "Memory limit for the container", false, nil, singleValue(func(m *measurement) uint64 { return m.stats.MemoryLimit })},
		{"container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container", false, nil, singleValue(func(m *measurement) uint64 { return m.details.Reservation })},
		{"container_spec_memory_swap_limit_bytes", "Memory swap limit for the container", false, nil, singleValue(func(m *measurement) uint64 { return m.details.SwapLimit })},
		{"container_start_time_seconds", "Start time of the container since unix epoch in seconds", false, nil, singleValue(func(m *measurement) uint64 { return uint64(m.started / int64(time.Second)) })},
		{"container_threads", "Number of threads running inside the container", false, nil, singleValue(func(m *measurement) uint64 { return m.processes.threads })},
		{"container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", false, nil, singleValue(func(m *measurement) uint64 { return m.details.PidsLimit })},
	}
}

// sandboxImage is the value of the label "image" of pod network metrics. Dashboards ignore series with an empty image.
const sandboxImage = "pause"

// networkMetrics returns the descriptions of the metrics that are reported for each pod that does not use the host's
// network.
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

// metricsService implements the CRI calls for container metrics.
type metricsService struct {
	*host
	inventory *inventory
	network   trafficCounter
}

// ListMetricDescriptors returns the names, help texts and labels of all metrics that ListPodSandboxMetrics returns.
func (ms *metricsService) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	resp := &runtimeapi.ListMetricDescriptorsResponse{}
	for _, m := range append(containerMetrics(), networkMetrics()...) {
		resp.Descriptors = append(resp.Descriptors, &runtimeapi.MetricDescriptor{
			Name: m.name, Help: m.help, LabelKeys: append(append([]string{}, commonLabels...), m.labels...)})
	}
	return resp, nil
}

// metricValues reads the values of all metrics from m, in the form of CRI. common are the values of commonLabels.
func metricValues(metrics []metric, m *measurement, common []string, now time.Time) []*runtimeapi.Metric {
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

// ListPodSandboxMetrics returns the metrics of all running pods.
func (ms *metricsService) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: ms.podMetrics()}, nil
}

// podMetrics measures all running pods and their running containers. Containers that exit in the meantime are omitted.
func (ms *metricsService) podMetrics() []*runtimeapi.PodSandboxMetrics {
	now := time.Now()
	var out []*runtimeapi.PodSandboxMetrics
	ofContainer, ofNetwork := containerMetrics(), networkMetrics()
	for _, s := range ms.inventory.allSandboxes() {
		rec := s.get()
		if rec.Phase != phaseRunning {
			continue
		}
		meta := rec.config.GetMetadata()
		pod := &runtimeapi.PodSandboxMetrics{PodSandboxId: rec.ID}
		cg := ms.podCgroup(rec.config)
		if cg == ms.defaultCgroup() { // shared by several pods
			cg = ms.sandboxCgroup(rec.config, rec.ID)
		}
		if !hostNetwork(rec.config) {
			if t, err := ms.network.Traffic(rec.ID); err == nil {
				pod.Metrics = metricValues(ofNetwork, &measurement{traffic: t},
					[]string{"POD", cg, sandboxImage, rec.ID, meta.GetNamespace(), meta.GetName()}, now)
			}
		}
		for _, c := range ms.inventory.containersOf(rec.ID) {
			m := ms.measure(c)
			if m == nil {
				continue
			}
			crec := c.get()
			pod.ContainerMetrics = append(pod.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: crec.ID, Metrics: metricValues(ofContainer, m,
				[]string{crec.config.GetMetadata().GetName(), crec.Cgroup, crec.ImageRef, crec.ID, meta.GetNamespace(), meta.GetName()}, now)})
		}
		out = append(out, pod)
	}
	return out
}

// measure reads the resource usage of a container. It returns nil if the container does not run. The disk usage may be
// cached, see diskSample.
func (ms *metricsService) measure(c *containerState) *measurement {
	rec := c.get()
	if rec.Phase != phaseRunning {
		return nil
	}
	stats, err := ms.cgroups.Stats(rec.Cgroup)
	if err != nil {
		return nil // it exited in the meantime
	}
	m := &measurement{stats: stats, details: ms.cgroups.Details(rec.Cgroup), started: rec.Started}
	upper := filepath.Join(ms.containerDir(c.id), "upper")
	usage, _ := c.diskUsage.get(upper)
	m.used = usage.Bytes
	var st unix.Stat_t
	if err := unix.Stat(upper, &st); err == nil {
		m.device = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	_ = unix.Statfs(upper, &m.disk) // zero values mean unknown
	m.processes = countProcesses(ms.cgroups, rec.Cgroup)
	return m
}

// countProcesses counts the processes in a cgroup, and their threads, open files and sockets. Processes that exit while
// it counts may be counted without threads or files. An unreadable cgroup counts as empty.
func countProcesses(cgroups *cgroup.Manager, cgroupPath string) processes {
	pids, err := cgroups.Pids(cgroupPath)
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
