package proxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

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
