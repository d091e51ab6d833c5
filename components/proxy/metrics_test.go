package proxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/proxy/rules"
)

// TestEnded: flows that were ended are counted by family.
func TestEnded(t *testing.T) {
	m := newMetrics()
	m.ended(false, 2, time.Now())
	m.ended(false, 1, time.Now())
	m.ended(true, 0, time.Now())
	if got := testutil.ToFloat64(m.flushed.WithLabelValues("IPv4")); got != 3 {
		t.Errorf("%v flows of IPv4", got)
	}
	if n := testutil.CollectAndCount(m.flushing); n != 2 {
		t.Errorf("durations of %d families", n)
	}
}

// TestSynced: what was written is told by family, and all and parts apart.
func TestSynced(t *testing.T) {
	m := newMetrics()
	m.queued(2, 3)
	if testutil.ToFloat64(m.servicesAhead) != 2 || testutil.ToFloat64(m.endpointsPending) != 3 {
		t.Error("what waits is not told")
	}
	m.begun()
	m.synced(false, true, time.Now(), []time.Time{time.Now()})
	m.synced(true, false, time.Now(), nil)
	if testutil.CollectAndCount(m.full) != 1 || testutil.CollectAndCount(m.partial) != 1 || testutil.CollectAndCount(m.duration) != 2 || testutil.ToFloat64(m.servicesAhead) != 0 {
		t.Error("what was written is not told apart")
	}
	m.failed(false, true)
	m.failed(false, false)
	if testutil.ToFloat64(m.failures.WithLabelValues("IPv4")) != 2 || testutil.ToFloat64(m.partialFailures.WithLabelValues("IPv4")) != 1 {
		t.Error("failures are not told apart")
	}
	here := []rules.Endpoint{{}}
	m.served(false, []*rules.Port{
		{LocalInternal: true, HasAny: true}, {LocalInternal: true, LocalExternal: true, HasAny: true}, {LocalInternal: true}, {LocalExternal: true, HasAny: true, LocalEndpoints: here}, {HasAny: true},
	})
	if in, out := testutil.ToFloat64(m.noLocal.WithLabelValues("internal", "IPv4")), testutil.ToFloat64(m.noLocal.WithLabelValues("external", "IPv4")); in != 2 || out != 1 {
		t.Errorf("%v and %v ports without endpoints here", in, out)
	}
	m.wrote(false, rules.Set{}, rulesIn("*filter\n:X - [0:0]\n-A X -j Y\nCOMMIT\n*nat\n-A A -j B\n-I C 1 -j D\nCOMMIT\n"))
	if f, n := testutil.ToFloat64(m.written.WithLabelValues("IPv4", "filter")), testutil.ToFloat64(m.written.WithLabelValues("IPv4", "nat")); f != 1 || n != 2 {
		t.Errorf("%v and %v rules", f, n)
	}
}

// TestTold: a change counts once, and when something happened to pods counts once too,
// however often the slice that tells of it changes afterwards.
func TestTold(t *testing.T) {
	p := &Proxy{metrics: newMetrics(), changed: map[string]bool{}, dirty: make(chan struct{}, 1), started: time.Unix(1000, 0)}
	at := func(seconds int64, more ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}, Finalizers: more}}
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Unix(seconds, 0).UTC().Format(time.RFC3339)}
		return s
	}
	p.told(nil, at(900)) // before the proxy started
	p.told(at(900), at(1100))
	p.told(at(1100), at(1100, "x"))
	p.told(at(1100), nil)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	p.told(nil, svc)
	p.told(svc, svc)
	if got := p.takeTriggered(); len(got) != 1 || !got[0].Equal(time.Unix(1100, 0)) {
		t.Errorf("triggered at %v", got)
	}
	if slices, services := testutil.ToFloat64(p.metrics.endpointChanges), testutil.ToFloat64(p.metrics.serviceChanges); slices != 4 || services != 2 {
		t.Errorf("%v changes of endpoints, %v of services", slices, services)
	}
	if !p.changed["ns/web"] || len(p.changed) != 1 {
		t.Errorf("changed: %v", p.changed)
	}
}
