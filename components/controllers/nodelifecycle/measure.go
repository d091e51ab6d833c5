package nodelifecycle

import "github.com/prometheus/client_golang/prometheus"

// zoneCollector computes the metrics of the zones when they are requested. It implements prometheus.Collector.
type zoneCollector struct{ c *Controller }

var (
	zoneHealthDesc    = prometheus.NewDesc("node_collector_zone_health", "[ALPHA] Gauge measuring percentage of healthy nodes per zone.", []string{"zone"}, nil)
	zoneSizeDesc      = prometheus.NewDesc("node_collector_zone_size", "[ALPHA] Gauge measuring number of registered Nodes per zones.", []string{"zone"}, nil)
	zoneUnhealthyDesc = prometheus.NewDesc("node_collector_unhealthy_nodes_in_zone", "[ALPHA] Gauge measuring number of not Ready Nodes per zones.", []string{"zone"}, nil)
)

// Describe implements prometheus.Collector. It sends the descriptions of the metrics of zones.
func (zoneCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- zoneHealthDesc
	ch <- zoneSizeDesc
	ch <- zoneUnhealthyDesc
}

// Collect implements prometheus.Collector. It sends the numbers and the health of the Nodes of each zone.
func (z zoneCollector) Collect(ch chan<- prometheus.Metric) {
	z.c.mu.Lock()
	defer z.c.mu.Unlock()
	for name, zone := range z.c.zones.byName {
		size, bad := len(zone.ready), 0
		for _, ready := range zone.ready {
			if !ready {
				bad++
			}
		}
		health := 100.0
		if size > 0 {
			health = 100 * float64(size-bad) / float64(size)
		}
		ch <- prometheus.MustNewConstMetric(zoneHealthDesc, prometheus.GaugeValue, health, name)
		ch <- prometheus.MustNewConstMetric(zoneSizeDesc, prometheus.GaugeValue, float64(size), name)
		ch <- prometheus.MustNewConstMetric(zoneUnhealthyDesc, prometheus.GaugeValue, float64(bad), name)
	}
}
