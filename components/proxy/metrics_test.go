package proxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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
