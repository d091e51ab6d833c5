package proxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
)

type fixedCounts struct{}

func (fixedCounts) Counts(packetfilter.Family) (total, last map[packetfilter.Table]int) {
	return map[packetfilter.Table]int{packetfilter.Filter: 10, packetfilter.NAT: 20}, map[packetfilter.Table]int{packetfilter.Filter: 1, packetfilter.NAT: 2}
}

// TestEnded checks that deleted flows are counted by IP family.
func TestEnded(t *testing.T) {
	m := newMetrics()
	m.flowsDeleted(false, 2, time.Now())
	m.flowsDeleted(false, 1, time.Now())
	m.flowsDeleted(true, 0, time.Now())
	if got := testutil.ToFloat64(m.flushed.WithLabelValues("IPv4")); got != 3 {
		t.Errorf("%v flows of IPv4", got)
	}
	if n := testutil.CollectAndCount(m.flushing); n != 2 {
		t.Errorf("durations of %d families", n)
	}
}

// TestSynced checks that full and partial writes are counted separately, by IP family.
func TestSynced(t *testing.T) {
	m := newMetrics()
	m.queued(2, 3)
	if testutil.ToFloat64(m.servicesPending) != 2 || testutil.ToFloat64(m.endpointsPending) != 3 {
		t.Error("wrong metrics of pending changes")
	}
	m.syncStarted()
	m.synced(false, true, time.Now(), []time.Time{time.Now()})
	m.synced(true, false, time.Now(), nil)
	if testutil.CollectAndCount(m.full) != 1 || testutil.CollectAndCount(m.partial) != 1 || testutil.CollectAndCount(m.duration) != 2 || testutil.ToFloat64(m.servicesPending) != 0 {
		t.Error("wrong metrics of full and partial writes")
	}
	m.failed(false, true)
	m.failed(false, false)
	if testutil.ToFloat64(m.failures.WithLabelValues("IPv4")) != 2 || testutil.ToFloat64(m.partialFailures.WithLabelValues("IPv4")) != 1 {
		t.Error("wrong metrics of failures")
	}
	here := []rules.Endpoint{{}}
	m.portsReplaced(false, nil, []*rules.Port{
		{LocalInternal: true, HasAny: true}, {LocalInternal: true, LocalExternal: true, HasAny: true}, {LocalInternal: true}, {LocalExternal: true, HasAny: true, LocalEndpoints: here}, {HasAny: true},
	})
	if in, out := testutil.ToFloat64(m.noLocal.WithLabelValues("internal", "IPv4")), testutil.ToFloat64(m.noLocal.WithLabelValues("external", "IPv4")); in != 2 || out != 1 {
		t.Errorf("%v and %v ports without endpoints here", in, out)
	}
	m.portsReplaced(false, []*rules.Port{{LocalInternal: true, HasAny: true}}, []*rules.Port{{LocalInternal: true, HasAny: true, LocalEndpoints: here}})
	if in := testutil.ToFloat64(m.noLocal.WithLabelValues("internal", "IPv4")); in != 1 {
		t.Errorf("%v ports without endpoints here after one got an endpoint", in)
	}
	m.rulesWritten(false, fixedCounts{})
	for gauge, want := range map[*prometheus.GaugeVec][2]float64{m.rules: {10, 20}, m.written: {1, 2}} {
		if f, n := testutil.ToFloat64(gauge.WithLabelValues("IPv4", "filter")), testutil.ToFloat64(gauge.WithLabelValues("IPv4", "nat")); f != want[0] || n != want[1] {
			t.Errorf("%v and %v rules", f, n)
		}
	}
}

// TestInformerEvents checks that a change is counted once, and that a pod change is recorded once, however
// often its EndpointSlice changes afterwards.
func TestInformerEvents(t *testing.T) {
	p := &Proxy{metrics: newMetrics(), changed: map[string]bool{}, dirty: make(chan struct{}, 1), started: time.Unix(1000, 0)}
	at := func(seconds int64, more ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}, Finalizers: more}}
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Unix(seconds, 0).UTC().Format(time.RFC3339)}
		return s
	}
	p.handleEvent(nil, at(900)) // before the proxy started
	p.handleEvent(at(900), at(1100))
	p.handleEvent(at(1100), at(1100, "x"))
	p.handleEvent(at(1100), nil)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	p.handleEvent(nil, svc)
	p.handleEvent(svc, svc)
	if got := p.drainTriggered(); len(got) != 1 || !got[0].Equal(time.Unix(1100, 0)) {
		t.Errorf("triggered at %v", got)
	}
	if slices, services := testutil.ToFloat64(p.metrics.endpointChanges), testutil.ToFloat64(p.metrics.serviceChanges); slices != 4 || services != 2 {
		t.Errorf("%v changes of endpoints, %v of services", slices, services)
	}
	if !p.changed["ns/web"] || len(p.changed) != 1 {
		t.Errorf("changed: %v", p.changed)
	}
}
