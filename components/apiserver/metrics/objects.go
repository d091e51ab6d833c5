package metrics

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"
)

// Stored is how many objects of a resource there are and about how many bytes
// all of them take in etcd.
type Stored struct {
	Group, Resource string
	Objects, Bytes  int
	// Events of it that came from etcd so far.
	Events uint64
}

// ShowStored adds the metrics of what is stored. Stored is asked whenever
// somebody looks, and must be quick.
func (m *Metrics) ShowStored(stored func() iter.Seq[Stored]) {
	m.registry.MustRegister(storedCollector(stored))
}

type storedCollector func() iter.Seq[Stored]

// The metrics of what is stored; the second name is the old one of the first.
var (
	resourceObjects = prometheus.NewDesc("apiserver_resource_objects",
		"[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
		[]string{"group", "resource"}, nil)
	storageObjects = prometheus.NewDesc("apiserver_storage_objects",
		"[STABLE] [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
		[]string{"resource"}, nil)
	resourceSize = prometheus.NewDesc("apiserver_resource_size_estimate_bytes",
		"[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects. In case of a fetching error, the value will be -1.",
		[]string{"group", "resource"}, nil)
	storageEvents = prometheus.NewDesc("apiserver_storage_events_received_total",
		"[BETA] Number of etcd events received split by kind.", []string{"group", "resource"}, nil)
)

// Describe is prometheus.Collector's.
func (c storedCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{resourceObjects, storageObjects, resourceSize, storageEvents} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (c storedCollector) Collect(ch chan<- prometheus.Metric) {
	for s := range c() {
		name := s.Resource
		if s.Group != "" {
			name += "." + s.Group
		}
		ch <- prometheus.MustNewConstMetric(resourceObjects, prometheus.GaugeValue, float64(s.Objects), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, float64(s.Objects), name)
		ch <- prometheus.MustNewConstMetric(resourceSize, prometheus.GaugeValue, float64(s.Bytes), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(storageEvents, prometheus.CounterValue, float64(s.Events), s.Group, s.Resource)
	}
}
