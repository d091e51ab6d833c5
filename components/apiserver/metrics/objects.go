package metrics

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/internal/store"
)

// Stored contains the numbers of one resource in the store: its objects, their approximate total
// size in etcd, and counts of cache operations.
type Stored struct {
	Group, Resource string
	Objects, Bytes  int
	// Counts are the counts of operations of the resource's watch cache, Revision is the revision
	// of its current state.
	store.Counts

	Revision int64
}

// RegisterStored registers the metrics of stored objects. stored returns the current numbers of all
// resources. It is called for each scrape and must be fast.
func (m *Metrics) RegisterStored(stored func() iter.Seq[Stored]) {
	m.registry.MustRegister(storedCollector(stored))
}

// storedCollector is the collector of the metrics of stored objects. The function returns the
// numbers of all resources.
type storedCollector func() iter.Seq[Stored]

// The metrics of stored objects. The second one is the deprecated name of the first.
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
	cacheReceived = prometheus.NewDesc("apiserver_watch_cache_events_received_total",
		"[ALPHA] Counter of events received in watch cache broken by resource type.", []string{"group", "resource"}, nil)
	cacheDispatched = prometheus.NewDesc("apiserver_watch_cache_events_dispatched_total",
		"[ALPHA] Counter of events dispatched in watch cache broken by resource type.", []string{"group", "resource"}, nil)
	cacheInitializations = prometheus.NewDesc("apiserver_watch_cache_initializations_total",
		"[ALPHA] Counter of watch cache initializations broken by resource type.", []string{"group", "resource"}, nil)
	cacheRevision = prometheus.NewDesc("apiserver_watch_cache_resource_version",
		"[ALPHA] Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits.", []string{"group", "resource"}, nil)
	cacheCapacity = prometheus.NewDesc("watch_cache_capacity",
		"[ALPHA] Total capacity of watch cache broken by resource type.", []string{"group", "resource"}, nil)
	listTotal = prometheus.NewDesc("apiserver_storage_list_total",
		"[ALPHA] Number of LIST requests served from storage", []string{"group", "resource", "storage", "index"}, nil)
	listFetched = prometheus.NewDesc("apiserver_storage_list_fetched_objects_total",
		"[ALPHA] Number of objects read from storage in the course of serving a LIST request", []string{"group", "resource", "storage", "index"}, nil)
	listEvaluated = prometheus.NewDesc("apiserver_storage_list_evaluated_objects_total",
		"[ALPHA] Number of objects tested in the course of serving a LIST request from storage", []string{"group", "resource", "storage"}, nil)
	listReturned = prometheus.NewDesc("apiserver_storage_list_returned_objects_total",
		"[ALPHA] Number of objects returned for a LIST request from storage", []string{"group", "resource", "storage"}, nil)
	slowWatchers = prometheus.NewDesc("apiserver_terminated_watchers_total",
		"[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type.", []string{"group", "resource"}, nil)
	cacheReads = prometheus.NewDesc("apiserver_watch_cache_consistent_read_total",
		"[ALPHA] Counter for consistent reads from cache.", []string{"group", "resource", "success", "fallback"}, nil)
)

// Describe implements prometheus.Collector. It describes the metrics of stored objects and the
// watch cache.
func (c storedCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{resourceObjects, storageObjects, resourceSize, storageEvents, cacheReceived, cacheDispatched, cacheInitializations, cacheRevision, cacheReads, cacheCapacity, listTotal, listFetched, listEvaluated, listReturned, slowWatchers} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It sends the metrics of all resources.
func (c storedCollector) Collect(ch chan<- prometheus.Metric) {
	for s := range c() {
		name := s.Resource
		if s.Group != "" {
			name += "." + s.Group
		}
		ch <- prometheus.MustNewConstMetric(resourceObjects, prometheus.GaugeValue, float64(s.Objects), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, float64(s.Objects), name)
		ch <- prometheus.MustNewConstMetric(resourceSize, prometheus.GaugeValue, float64(s.Bytes), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(storageEvents, prometheus.CounterValue, float64(s.Received), s.Group, s.Resource)
		// Received events are dispatched immediately.
		ch <- prometheus.MustNewConstMetric(cacheReceived, prometheus.CounterValue, float64(s.Received), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(cacheDispatched, prometheus.CounterValue, float64(s.Received), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(cacheInitializations, prometheus.CounterValue, float64(s.Fills), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(cacheRevision, prometheus.GaugeValue, float64(s.Revision%1e15), s.Group, s.Resource)
		ch <- prometheus.MustNewConstMetric(cacheCapacity, prometheus.GaugeValue, float64(s.Capacity), s.Group, s.Resource)
		collectLists(ch, s, "watchcache", s.Cache)
		collectLists(ch, s, "etcd", s.Etcd)
		if s.TerminatedWatchers > 0 {
			ch <- prometheus.MustNewConstMetric(slowWatchers, prometheus.CounterValue, float64(s.TerminatedWatchers), s.Group, s.Resource)
		}
		if s.Reads > 0 {
			ch <- prometheus.MustNewConstMetric(cacheReads, prometheus.CounterValue, float64(s.Reads), s.Group, s.Resource, "true", "false")
		}
	}
}

// collectLists sends the metrics of the lists of a resource that were served from one source: from is "watchcache" or
// "etcd", l are their counts. It sends none if there were no lists. The label index is always empty.
func collectLists(ch chan<- prometheus.Metric, s Stored, from string, l store.Lists) {
	if l.Total == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(listTotal, prometheus.CounterValue, float64(l.Total), s.Group, s.Resource, from, "")
	ch <- prometheus.MustNewConstMetric(listFetched, prometheus.CounterValue, float64(l.Fetched), s.Group, s.Resource, from, "")
	ch <- prometheus.MustNewConstMetric(listEvaluated, prometheus.CounterValue, float64(l.Evaluated), s.Group, s.Resource, from)
	ch <- prometheus.MustNewConstMetric(listReturned, prometheus.CounterValue, float64(l.Returned), s.Group, s.Resource, from)
}
