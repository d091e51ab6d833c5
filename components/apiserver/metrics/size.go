package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sizeTimeout limits the status request to an etcd.
const sizeTimeout = 2 * time.Second

// RegisterSize registers the metric of the database sizes of etcds, the main one first. They are
// queried on each scrape.
func (m *Metrics) RegisterSize(etcds ...*clientv3.Client) { m.registry.MustRegister(sizes(etcds)) }

var sizeDesc = prometheus.NewDesc("apiserver_storage_size_bytes",
	"[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)

// sizes implements prometheus.Collector.
type sizes []*clientv3.Client

// Describe implements prometheus.Collector.
func (sizes) Describe(ch chan<- *prometheus.Desc) { ch <- sizeDesc }

// Collect implements prometheus.Collector. It omits an etcd that does not respond.
func (s sizes) Collect(ch chan<- prometheus.Metric) {
	for i, client := range s {
		endpoint := ""
		if all := client.Endpoints(); len(all) > 0 {
			endpoint = all[0]
		}
		ctx, cancel := context.WithTimeout(context.Background(), sizeTimeout)
		status, err := client.Status(ctx, endpoint)
		cancel()
		if err == nil {
			ch <- prometheus.MustNewConstMetric(sizeDesc, prometheus.GaugeValue, float64(status.DbSize), fmt.Sprintf("etcd-%d", i))
		}
	}
}
