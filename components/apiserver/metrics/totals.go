package metrics

import (
	"net/http"
	"sync/atomic"
	"time"
)

// totals counts all requests that are not long-running. Reading it costs less than gathering the metrics by verb and resource.
type totals struct{ requests, errors, took atomic.Int64 }

// add counts a completed request, unless it is long-running.
func (t *totals) add(a Answer) {
	if a.Long {
		return
	}
	t.requests.Add(1)
	if a.Code >= http.StatusInternalServerError {
		t.errors.Add(1)
	}
	t.took.Add(int64(a.Took))
}

// Totals are the numbers of completed requests since the start of the server that were not long-running, and of those of them with
// a status of 500 or above. Took is the sum of their durations.
type Totals struct {
	Requests, Errors int64
	Took             time.Duration
}

// TotalsOf returns the totals of all requests in m.
func TotalsOf(m *Metrics) Totals {
	return Totals{m.totals.requests.Load(), m.totals.errors.Load(), time.Duration(m.totals.took.Load())}
}
