package logging

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// desc returns the description of a metric of the agent.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hyperkube_logging_"+name, help, labels, nil)
}

// collector reports the counters of the parts of an Agent.
type collector struct {
	agent *Agent

	sources, read, dropped, malformed        *prometheus.Desc
	stored, storeSize, failures              *prometheus.Desc
	sent, rejected, removed, requestFailures *prometheus.Desc
	lagBytes, lagSeconds                     *prometheus.Desc
}

// registry returns the metrics of the agent.
func (a *Agent) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{
		agent:           a,
		sources:         desc("sources", "Number of containers and files whose logs are collected."),
		read:            desc("read_bytes_total", "Bytes read from log files."),
		dropped:         desc("dropped_records_total", "Records that were not stored because of a rule."),
		malformed:       desc("malformed_lines_total", "Lines of container logs in another format than that of the CRI."),
		stored:          desc("stored_records_total", "Records written to the store."),
		storeSize:       desc("store_bytes", "Size of the store."),
		failures:        desc("store_failures_total", "Failed attempts to write to the store."),
		sent:            desc("sink_sent_records_total", "Records that the sink has acknowledged.", "sink"),
		rejected:        desc("sink_rejected_records_total", "Records that the sink does not accept.", "sink"),
		removed:         desc("sink_removed_records_total", "Records that the store has removed before they were sent.", "sink"),
		requestFailures: desc("sink_failures_total", "Failed requests to the sink.", "sink"),
		lagBytes:        desc("sink_lag_bytes", "Size of the stored records that the sink has not acknowledged.", "sink"),
		lagSeconds:      desc("sink_lag_seconds", "Age of the oldest record that was sent but not acknowledged.", "sink"),
	}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	n := c.agent.collect.Counts()
	gauge(c.sources, float64(n.Sources))
	counter(c.read, float64(n.Read))
	counter(c.dropped, float64(n.Dropped))
	counter(c.malformed, float64(n.Malformed))
	s := c.agent.store.Stats()
	counter(c.stored, float64(s.Records))
	gauge(c.storeSize, float64(s.Size))
	counter(c.failures, float64(s.Failures))
	for _, r := range c.agent.sinks.current() {
		k, name := r.worker.Stats(), r.settings.Name
		counter(c.sent, float64(k.Sent), name)
		counter(c.rejected, float64(k.Rejected), name)
		counter(c.removed, float64(k.Removed), name)
		counter(c.requestFailures, float64(k.Failures), name)
		gauge(c.lagBytes, float64(k.LagBytes), name)
		gauge(c.lagSeconds, k.LagSeconds, name)
	}
}
