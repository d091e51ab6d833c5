package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// collector turns a Summary into metrics at each scrape.
type collector struct {
	p    *Provider
	emit func(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric)
	bad  *prometheus.Desc // 1 when measuring failed; nil: not told
}

// Describe implements prometheus.Collector; nothing is told beforehand.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := c.p.Summary(ctx)
	failed := 0.0
	if err != nil {
		failed = 1
	} else {
		c.emit(s, ch)
	}
	if c.bad != nil {
		ch <- prometheus.MustNewConstMetric(c.bad, prometheus.GaugeValue, failed)
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Resource is what /metrics/resource tells: the few series that autoscaling
// and `kubectl top` live by.
func (p *Provider) Resource() prometheus.Collector {
	c3 := []string{"container", "pod", "namespace"}
	c2 := []string{"pod", "namespace"}
	nodeCPU := desc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds")
	nodeMem := desc("node_memory_working_set_bytes", "Current working set of the node in bytes")
	cCPU := desc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", c3...)
	cMem := desc("container_memory_working_set_bytes", "Current working set of the container in bytes", c3...)
	cStart := desc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", c3...)
	pCPU := desc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", c2...)
	pMem := desc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", c2...)
	return collector{p: p, bad: desc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"), emit: func(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric) {
		cpu := func(d *prometheus.Desc, c *statsv1alpha1.CPUStats, labels ...string) {
			if c != nil && c.UsageCoreNanoSeconds != nil {
				ch <- prometheus.NewMetricWithTimestamp(c.Time.Time, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(*c.UsageCoreNanoSeconds)/1e9, labels...))
			}
		}
		mem := func(d *prometheus.Desc, m *statsv1alpha1.MemoryStats, labels ...string) {
			if m != nil && m.WorkingSetBytes != nil {
				ch <- prometheus.NewMetricWithTimestamp(m.Time.Time, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(*m.WorkingSetBytes), labels...))
			}
		}
		cpu(nodeCPU, s.Node.CPU)
		mem(nodeMem, s.Node.Memory)
		for i := range s.Pods {
			pod := &s.Pods[i]
			for j := range pod.Containers {
				c := &pod.Containers[j]
				labels := []string{c.Name, pod.PodRef.Name, pod.PodRef.Namespace}
				if !c.StartTime.IsZero() {
					ch <- prometheus.MustNewConstMetric(cStart, prometheus.GaugeValue, float64(c.StartTime.UnixNano())/1e9, labels...)
				}
				cpu(cCPU, c.CPU, labels...)
				mem(cMem, c.Memory, labels...)
			}
			cpu(pCPU, pod.CPU, pod.PodRef.Name, pod.PodRef.Namespace)
			mem(pMem, pod.Memory, pod.PodRef.Name, pod.PodRef.Namespace)
		}
	}}
}

// Cadvisor is the main part of what /metrics/cadvisor tells.
func (p *Provider) Cadvisor(cores int64, memoryBytes int64) prometheus.Collector {
	c3 := []string{"container", "pod", "namespace"}
	cpu := desc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", append(c3, "cpu")...)
	usage := desc("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", c3...)
	working := desc("container_memory_working_set_bytes", "Current working set in bytes.", c3...)
	rss := desc("container_memory_rss", "Size of RSS in bytes.", c3...)
	fs := desc("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", c3...)
	start := desc("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", c3...)
	rx := desc("container_network_receive_bytes_total", "Cumulative count of bytes received", "interface", "pod", "namespace")
	tx := desc("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", "interface", "pod", "namespace")
	rxErr := desc("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", "interface", "pod", "namespace")
	txErr := desc("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", "interface", "pod", "namespace")
	machineCores := desc("machine_cpu_cores", "Number of logical CPU cores.")
	machineMemory := desc("machine_memory_bytes", "Amount of memory installed on the machine.")
	bad := desc("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
	return collector{p: p, bad: bad, emit: func(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric) {
		put := func(d *prometheus.Desc, kind prometheus.ValueType, v *uint64, scale float64, labels ...string) {
			if v != nil {
				ch <- prometheus.MustNewConstMetric(d, kind, float64(*v)/scale, labels...)
			}
		}
		one := func(c *statsv1alpha1.CPUStats, m *statsv1alpha1.MemoryStats, container, pod, namespace string) {
			if c != nil {
				put(cpu, prometheus.CounterValue, c.UsageCoreNanoSeconds, 1e9, container, pod, namespace, "total")
			}
			if m != nil {
				put(usage, prometheus.GaugeValue, m.UsageBytes, 1, container, pod, namespace)
				put(working, prometheus.GaugeValue, m.WorkingSetBytes, 1, container, pod, namespace)
				put(rss, prometheus.GaugeValue, m.RSSBytes, 1, container, pod, namespace)
			}
		}
		c, m := uint64(cores), uint64(memoryBytes)
		put(machineCores, prometheus.GaugeValue, &c, 1)
		put(machineMemory, prometheus.GaugeValue, &m, 1)
		one(s.Node.CPU, s.Node.Memory, "", "", "")
		for i := range s.Pods {
			pod := &s.Pods[i]
			name, namespace := pod.PodRef.Name, pod.PodRef.Namespace
			one(pod.CPU, pod.Memory, "", name, namespace)
			for j := range pod.Containers {
				c := &pod.Containers[j]
				one(c.CPU, c.Memory, c.Name, name, namespace)
				if c.Rootfs != nil {
					put(fs, prometheus.GaugeValue, c.Rootfs.UsedBytes, 1, c.Name, name, namespace)
				}
				if !c.StartTime.IsZero() {
					ch <- prometheus.MustNewConstMetric(start, prometheus.GaugeValue, float64(c.StartTime.Unix()), c.Name, name, namespace)
				}
			}
			if pod.Network != nil {
				for _, n := range pod.Network.Interfaces {
					put(rx, prometheus.CounterValue, n.RxBytes, 1, n.Name, name, namespace)
					put(tx, prometheus.CounterValue, n.TxBytes, 1, n.Name, name, namespace)
					put(rxErr, prometheus.CounterValue, n.RxErrors, 1, n.Name, name, namespace)
					put(txErr, prometheus.CounterValue, n.TxErrors, 1, n.Name, name, namespace)
				}
			}
		}
	}}
}
