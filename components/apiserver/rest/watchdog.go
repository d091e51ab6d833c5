package rest

import (
	"net/http"
	"sync"
	"time"
)

// watchdog aborts a write to a client that does not read for too long. A client that keeps its
// connection open, answers pings and never reads would otherwise keep its watch forever. A watchdog
// is much cheaper than a write deadline per event, which HTTP/2 sets in the goroutine of the
// connection.
type watchdog struct {
	// deadline aborts a write by setting a deadline in the past.
	deadline interface{ SetWriteDeadline(time.Time) error }
	limit    time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// armed is true during a write. expired is true once a write took too long.
	armed, expired bool
}

// newWatchdog returns a watchdog for writes to w, each of which may take up to limit.
func newWatchdog(w http.ResponseWriter, limit time.Duration) *watchdog {
	return &watchdog{deadline: http.NewResponseController(w), limit: limit}
}

// arm starts the timer that aborts a write on which the client does not make progress. It must be
// called before each write.
func (d *watchdog) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = true
	if d.timer == nil {
		d.timer = time.AfterFunc(d.limit, d.expire)
		return
	}
	d.timer.Reset(d.limit)
}

// disarm stops the timer after a write, and reports whether all writes were in time. Afterwards the
// watchdog does not access the writer until arm is called.
func (d *watchdog) disarm() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	d.timer.Stop()
	return !d.expired
}

// expire aborts the current write when the timer fires. It does nothing if no write is in progress.
func (d *watchdog) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.armed {
		d.expired = true
		_ = d.deadline.SetWriteDeadline(time.Unix(1, 0)) // in-process writers have no deadline and need none
	}
}
