package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// bodies contains the metrics of the sizes of request bodies. known caches the metrics by their
// labels.
type bodies struct {
	sizes *prometheus.HistogramVec
	known sync.Map // of prometheus.Observer by bodyKey
}

// bodyKey contains the labels of one metric of body sizes.
type bodyKey struct{ group, resource, verb string }

// newBodies creates the metrics of the sizes of request bodies. New registers them.
func newBodies() *bodies {
	return &bodies{sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_request_body_size_bytes", Help: "[ALPHA] Apiserver request body size in bytes broken out by resource and verb.",
		Buckets: prometheus.LinearBuckets(50000, 100000, 31),
	}, []string{"group", "resource", "verb"})}
}

// Body records the size in bytes of the body of a request for a served resource, by resource and verb. It does
// nothing if m is nil.
func (m *Metrics) Body(info *apirequest.RequestInfo, size int) {
	if m == nil {
		return
	}
	k := bodyKey{info.APIGroup, info.Resource, info.Verb}
	if k.verb == "deletecollection" {
		k.verb = "delete_collection"
	}
	known, ok := m.bodies.known.Load(k)
	if !ok {
		known, _ = m.bodies.known.LoadOrStore(k, m.bodies.sizes.WithLabelValues(k.group, k.resource, k.verb))
	}
	known.(prometheus.Observer).Observe(float64(size))
}
