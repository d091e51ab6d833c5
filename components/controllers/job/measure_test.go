package job

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	batchv1 "k8s.io/api/batch/v1"
)

// TestCounted: time series of finished pods exist as soon as a status is written, and an index that
// becomes out of range does not decrement them.
func TestCounted(t *testing.T) {
	m := newMetrics()
	j := &batchv1.Job{}
	statuses := []batchv1.JobStatus{{}, {Active: 1}, {Succeeded: 3, Failed: 1}, {Succeeded: 2, Failed: 1}}
	for i, want := range []float64{0, 3, 3} {
		m.counted(j, &statuses[i], &statuses[i+1])
		if n := testutil.CollectAndCount(m.pods); n != 2 {
			t.Errorf("step %d: %d series", i, n)
		}
		if got := testutil.ToFloat64(m.pods.WithLabelValues("NonIndexed", "succeeded")); got != want {
			t.Errorf("step %d: %v succeeded, want %v", i, got, want)
		}
	}
}
