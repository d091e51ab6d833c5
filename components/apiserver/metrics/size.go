package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sizeTimeout is how long a scrape waits for the status of each etcd.
const sizeTimeout = 2 * time.Second

// RegisterSize registers the metric of the database sizes of the etcds to which the clients connect, the main etcd
// first. Each scrape of the metrics queries them.
func (m *Metrics) RegisterSize(etcds ...*clientv3.Client) { m.registry.MustRegister(sizes(etcds)) }

// sizeDesc is the metric of an etcd's database size. Its label is etcd-0 for the main etcd, etcd-1
// for the next one, and so on.
var sizeDesc = prometheus.NewDesc("apiserver_storage_size_bytes",
	"[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)

// sizes is the Prometheus collector of the database sizes of the etcds with these clients.
type sizes []*clientv3.Client

// Describe implements prometheus.Collector. It describes the metric of database sizes.
func (sizes) Describe(ch chan<- *prometheus.Desc) { ch <- sizeDesc }

// Collect implements prometheus.Collector. It queries each etcd for its database size, and omits
// those that do not respond.
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
