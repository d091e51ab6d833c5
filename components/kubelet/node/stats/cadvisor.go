package stats

import (
	"context"
	"path"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
)

// Hardware describes the machine for the metrics machine_… and cadvisor_version_info of /metrics/cadvisor.
type Hardware struct {
	BootID, MachineID, SystemUUID string
	Kernel, OS                    string // versions
	// CPUs is the number of logical CPUs.
	CPUs, Cores, Sockets   int64
	MemoryBytes, SwapBytes int64
	CgroupOf               func(uid string) string // cgroup of a pod; may be nil
}

// containerLabels are the labels of cAdvisor's container metrics.
var containerLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// cpuSeconds is the metric of the CPU time of containers.
const cpuSeconds = "container_cpu_usage_seconds_total"

// Cadvisor returns the collector of /metrics/cadvisor: metrics of the machine, the runtime's
// metrics under cAdvisor's names, and metrics of pods and the node. For a runtime without metrics,
// the main series are computed from the summary.
//
// https://kep.k8s.io/2371
func (p *Provider) Cadvisor(h Hardware) prometheus.Collector { return &cadvisor{p: p, hardware: h} }

// cadvisor is the collector of /metrics/cadvisor.
type cadvisor struct {
	p        *Provider
	hardware Hardware
}

// Describe sends nothing, because the metrics of the runtime are not known in advance. Prometheus then does
// not check them.
func (*cadvisor) Describe(chan<- *prometheus.Desc) {}

// Collect sends the current metrics to ch. After an error the metrics of containers are incomplete, and
// container_scrape_error is 1.
func (c *cadvisor) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	failed := 0.0
	if err := c.collect(ctx, ch); err != nil {
		failed = 1
	}
	ch <- prometheus.MustNewConstMetric(desc("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"), prometheus.GaugeValue, failed)
	c.machine(ch)
}

// machine sends the metrics of the machine: CPUs, memory, swap, and the versions of kernel and operating system.
func (c *cadvisor) machine(ch chan<- prometheus.Metric) {
	h := c.hardware
	for _, m := range []struct {
		name, help string
		value      int64
	}{
		{"machine_cpu_cores", "Number of logical CPU cores.", h.CPUs},
		{"machine_cpu_physical_cores", "Number of physical CPU cores.", h.Cores},
		{"machine_cpu_sockets", "Number of CPU sockets.", h.Sockets},
		{"machine_memory_bytes", "Amount of memory installed on the machine.", h.MemoryBytes},
		{"machine_swap_bytes", "Amount of swap memory available on the machine.", h.SwapBytes},
	} {
		ch <- prometheus.MustNewConstMetric(desc(m.name, m.help, "boot_id", "machine_id", "system_uuid"), prometheus.GaugeValue, float64(m.value), h.BootID, h.MachineID, h.SystemUUID)
	}
	ch <- prometheus.MustNewConstMetric(desc("cadvisor_version_info", "A metric with a constant '1' value labeled by the versions of the kernel and of the system; the others are empty.",
		"kernelVersion", "osVersion", "dockerVersion", "cadvisorVersion", "cadvisorRevision"), prometheus.GaugeValue, 1, h.Kernel, h.OS, "", "", "")
	ch <- prometheus.MustNewConstMetric(desc("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise."), prometheus.GaugeValue, 0)
}

// collect sends the metrics of the node, the pods and the containers. For a runtime that reports no metrics of
// containers, it computes the most important series from the summary. It returns an error if the runtime fails.
func (c *cadvisor) collect(ctx context.Context, ch chan<- prometheus.Metric) error {
	summary, known, err := c.p.summary(ctx)
	if err != nil {
		return err
	}
	described, err := c.p.CRI.Runtime.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil && !cri.IsUnimplemented(err) {
		return err
	}
	// The help text of a series must be the same for all its sources.
	help := map[string]string{}
	for _, d := range described.GetDescriptors() {
		help[d.Name] = d.Help
	}
	c.nodeAndPods(summary, ch, help)
	if len(help) == 0 {
		c.containers(summary, ch, help)
		return nil
	}
	list, err := c.p.CRI.Runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	descs, named, index := map[string]*prometheus.Desc{}, map[string]int{}, map[string]int{}
	for i, d := range described.Descriptors {
		index[d.Name] = i
		descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.LabelKeys, nil)
		named[d.Name] = slices.Index(d.LabelKeys, "name")
	}
	put := func(m *runtimeapi.Metric) {
		d := descs[m.Name]
		if d == nil {
			return
		}
		kind, value := prometheus.GaugeValue, float64(m.GetValue().GetValue())
		if m.MetricType == runtimeapi.MetricType_COUNTER {
			kind = prometheus.CounterValue
		}
		// CRI reports whole seconds, which are too coarse to compute rates.
		if i := named[m.Name]; m.Name == cpuSeconds && i >= 0 && i < len(m.LabelValues) {
			of := known[m.LabelValues[i]]
			if of.nanos != nil {
				value = float64(of.nanos.Value) / 1e9
			}
			// CRI's metrics do not include pressure.
			labels := make([]string, len(containerLabels))
			for j, key := range described.Descriptors[index[m.Name]].LabelKeys {
				if at := slices.Index(containerLabels, key); at >= 0 && j < len(m.LabelValues) {
					labels[at] = m.LabelValues[j]
				}
			}
			(&mainSeries{ch: ch, help: help, labels: labels}).pressure(of.cpu, of.memory, of.io)
		}
		metric, err := prometheus.NewConstMetric(d, kind, value, m.LabelValues...)
		if err != nil {
			return // does not match its descriptor
		}
		if m.Timestamp > 0 {
			metric = prometheus.NewMetricWithTimestamp(time.Unix(0, m.Timestamp), metric)
		}
		ch <- metric
	}
	for _, pod := range list.PodMetrics {
		for _, m := range pod.Metrics {
			put(m)
		}
		for _, one := range pod.ContainerMetrics {
			for _, m := range one.Metrics {
				put(m)
			}
		}
	}
	return nil
}

// mainSeries sends the most important series of one container, pod or node to a channel of metrics. labels are the
// values of containerLabels.
type mainSeries struct {
	ch     chan<- prometheus.Metric
	help   map[string]string // help texts of the runtime
	labels []string
}

// put sends a series with the value v divided by scale, unless v is nil. The help text of the runtime for a series
// of that name takes precedence over help. extra are the keys and values of additional labels.
func (m *mainSeries) put(name, help string, kind prometheus.ValueType, v *uint64, scale float64, extra ...string) {
	if v == nil {
		return
	}
	keys, values := slices.Clone(containerLabels), slices.Clone(m.labels)
	for i := 0; i+1 < len(extra); i += 2 {
		keys, values = append(keys, extra[i]), append(values, extra[i+1])
	}
	if text, ok := m.help[name]; ok {
		help = text
	}
	m.ch <- prometheus.MustNewConstMetric(desc(name, help, keys...), kind, float64(*v)/scale, values...)
}

// usage sends the CPU and memory usage, each of which may be nil.
func (m *mainSeries) usage(cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats) {
	if cpu != nil {
		m.put(cpuSeconds, "Cumulative cpu time consumed in seconds.", prometheus.CounterValue, cpu.UsageCoreNanoSeconds, 1e9, "cpu", "total")
	}
	if memory != nil {
		m.put("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", prometheus.GaugeValue, memory.UsageBytes, 1)
		m.put("container_memory_working_set_bytes", "Current working set in bytes.", prometheus.GaugeValue, memory.WorkingSetBytes, 1)
		m.put("container_memory_rss", "Size of RSS in bytes.", prometheus.GaugeValue, memory.RSSBytes, 1)
	}
}

// network sends the traffic of each network interface. n may be nil.
func (m *mainSeries) network(n *statsv1alpha1.NetworkStats) {
	if n == nil {
		return
	}
	for i := range n.Interfaces {
		one := &n.Interfaces[i]
		m.put("container_network_receive_bytes_total", "Cumulative count of bytes received", prometheus.CounterValue, one.RxBytes, 1, "interface", one.Name)
		m.put("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", prometheus.CounterValue, one.RxErrors, 1, "interface", one.Name)
		m.put("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", prometheus.CounterValue, one.TxBytes, 1, "interface", one.Name)
		m.put("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", prometheus.CounterValue, one.TxErrors, 1, "interface", one.Name)
	}
}

// nodeAndPods sends the metrics of the node and of each pod as a whole. help has the help texts of the
// runtime by series.
func (c *cadvisor) nodeAndPods(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric, help map[string]string) {
	node := &mainSeries{ch: ch, help: help, labels: []string{"", "/", "", "", "", ""}}
	node.usage(s.Node.CPU, s.Node.Memory)
	node.pressure(pressureOf(s.Node.CPU, s.Node.Memory, s.Node.IO))
	node.network(s.Node.Network)
	if fs := s.Node.Fs; fs != nil {
		node.put("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", prometheus.GaugeValue, fs.CapacityBytes, 1, "device", "")
		node.put("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", prometheus.GaugeValue, fs.UsedBytes, 1, "device", "")
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		m := &mainSeries{ch: ch, help: help, labels: []string{"", c.cgroup(pod.PodRef.UID), "", "", pod.PodRef.Namespace, pod.PodRef.Name}}
		m.usage(pod.CPU, pod.Memory)
		m.pressure(pressureOf(pod.CPU, pod.Memory, pod.IO))
	}
}

// cgroup returns the cgroup of the pod with that UID, or "" if it is unknown.
func (c *cadvisor) cgroup(uid string) string {
	if c.hardware.CgroupOf == nil {
		return ""
	}
	return c.hardware.CgroupOf(uid)
}

// containers sends the most important series of each container in s to ch, for a runtime that reports no metrics.
// help has the runtime's help texts by series.
func (c *cadvisor) containers(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric, help map[string]string) {
	for i := range s.Pods {
		pod := &s.Pods[i]
		id := c.cgroup(pod.PodRef.UID)
		(&mainSeries{ch: ch, help: help, labels: []string{"POD", id, "", "", pod.PodRef.Namespace, pod.PodRef.Name}}).network(pod.Network)
		for j := range pod.Containers {
			one := &pod.Containers[j]
			m := &mainSeries{ch: ch, help: help, labels: []string{one.Name, path.Join(id, one.Name), "", "", pod.PodRef.Namespace, pod.PodRef.Name}}
			m.usage(one.CPU, one.Memory)
			m.pressure(pressureOf(one.CPU, one.Memory, one.IO))
			if one.Rootfs != nil {
				m.put("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", prometheus.GaugeValue, one.Rootfs.UsedBytes, 1, "device", "")
			}
			if !one.StartTime.IsZero() {
				at := uint64(one.StartTime.Unix())
				m.put("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", prometheus.GaugeValue, &at, 1)
			}
		}
	}
}
