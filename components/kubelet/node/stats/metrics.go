package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// collector is a Prometheus collector that computes metrics from a Summary on each scrape. emit sends them, and bad
// describes the metric that is 1 after an error.
type collector struct {
	p    *Provider
	emit func(s *statsv1alpha1.Summary, ch chan<- prometheus.Metric)
	bad  *prometheus.Desc // 1 if the summary failed; nil for no such metric
}

// Describe sends nothing, because the labels of the metrics depend on the pods. Prometheus then does not
// check them.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of the current Summary to ch, and the metric that bad describes with the value 0. If
// the Summary cannot be computed, it sends only that metric, with the value 1. Without bad, it sends nothing then.
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

// desc returns the description of a metric without constant labels.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Resource returns the collector of /metrics/resource: the series that autoscaling and `kubectl
// top` require.
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
	nodeSwap := desc("node_swap_usage_bytes", "Current swap usage of the node in bytes. Reported only on non-windows systems")
	cSwap := desc("container_swap_usage_bytes", "Current amount of the container swap usage in bytes. Reported only on non-windows systems", c3...)
	pSwap := desc("pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes. Reported only on non-windows systems", c2...)
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
		swap := func(d *prometheus.Desc, m *statsv1alpha1.SwapStats, labels ...string) {
			if m != nil && m.SwapUsageBytes != nil {
				ch <- prometheus.NewMetricWithTimestamp(m.Time.Time, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(*m.SwapUsageBytes), labels...))
			}
		}
		swap(nodeSwap, s.Node.Swap)
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
				swap(cSwap, c.Swap, labels...)
			}
			cpu(pCPU, pod.CPU, pod.PodRef.Name, pod.PodRef.Namespace)
			mem(pMem, pod.Memory, pod.PodRef.Name, pod.PodRef.Namespace)
			swap(pSwap, pod.Swap, pod.PodRef.Name, pod.PodRef.Namespace)
		}
	}}
}
