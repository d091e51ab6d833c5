package rest

import (
	"net/http"
	"sync"
	"time"
)

// watchdog ends a write that a client does not take for too long: one that
// keeps its connection, answers pings and never reads would hold its watch for
// ever. It costs a write much less than a deadline for each, which goes through
// the connection's own goroutine with HTTP/2.
type watchdog struct {
	// deadline is what ends a write: a deadline that has passed.
	deadline interface{ SetWriteDeadline(time.Time) error }
	limit    time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// armed while a write is under way; bitten once one took too long.
	armed, bitten bool
}

// newWatchdog is for writes to w that may take limit.
func newWatchdog(w http.ResponseWriter, limit time.Duration) *watchdog {
	return &watchdog{deadline: http.NewResponseController(w), limit: limit}
}

// arm begins a write.
func (d *watchdog) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = true
	if d.timer == nil {
		d.timer = time.AfterFunc(d.limit, d.bite)
		return
	}
	d.timer.Reset(d.limit)
}

// disarm ends a write, and tells whether it was taken in time. Afterwards the
// writer is not touched.
func (d *watchdog) disarm() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	d.timer.Stop()
	return !d.bitten
}

func (d *watchdog) bite() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.armed {
		d.bitten = true
		_ = d.deadline.SetWriteDeadline(time.Unix(1, 0)) // in memory there is none, and no need
	}
}
