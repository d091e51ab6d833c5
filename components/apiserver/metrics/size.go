package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sizeTimeout bounds how long an etcd may take to tell its size.
const sizeTimeout = 2 * time.Second

// ShowSize tells how large the databases of etcds are, the main one first. They
// are asked when somebody looks.
func (m *Metrics) ShowSize(etcds ...*clientv3.Client) { m.registry.MustRegister(sizes(etcds)) }

var sizeDesc = prometheus.NewDesc("apiserver_storage_size_bytes",
	"[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)

// sizes implements prometheus.Collector.
type sizes []*clientv3.Client

// Describe as prometheus.Collector.
func (sizes) Describe(ch chan<- *prometheus.Desc) { ch <- sizeDesc }

// Collect as prometheus.Collector. An etcd that does not answer is left out.
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
