package rest

import (
	"net/http"
	"sync"
	"time"
)

// watchdog aborts a write that a client does not read for too long: a client that keeps its
// connection open, answers pings and never reads would otherwise keep its watch forever. This is
// much cheaper than a deadline for each write, which in HTTP/2 is set by the goroutine of the
// connection.
type watchdog struct {
	// deadline aborts a write by setting a deadline in the past.
	deadline interface{ SetWriteDeadline(time.Time) error }
	limit    time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// armed is true during a write. bitten is true once one took too long.
	armed, expired bool
}

// newWatchdog returns a watchdog for writes to w, each of which may take up to limit.
func newWatchdog(w http.ResponseWriter, limit time.Duration) *watchdog {
	return &watchdog{deadline: http.NewResponseController(w), limit: limit}
}

// arm starts the timer for a write.
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

// disarm stops the timer, and reports whether the write was in time. After that the watchdog does
// not access the writer.
func (d *watchdog) disarm() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	d.timer.Stop()
	return !d.expired
}

func (d *watchdog) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.armed {
		d.expired = true
		_ = d.deadline.SetWriteDeadline(time.Unix(1, 0)) // in-process writers have no deadline and need none
	}
}
