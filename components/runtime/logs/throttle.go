package logs

import "time"

// A log is bounded by whoever rotates it, who looks every few seconds; a
// container that writes as fast as it can fills the disk in between. So what is
// written to one file goes fast at first and then at a rate that leaves time to
// rotate. The container that writes more waits, as for a slow terminal.
const (
	// fastBytes of each file may come at fastRate: more than the kubelet's
	// usual bound of a file.
	fastBytes = 16 << 20
	// fastRate and slowRate are in bytes a second.
	fastRate = 32 << 20
	slowRate = 4 << 20
	// slack is for how long a log may go over its rate.
	slack = 250 * time.Millisecond
)

// throttle bounds the rate of one log. The zero value is ready.
type throttle struct {
	size  int64     // of the current file as far as this process has written it
	ready time.Time // when all that was written is paid for
}

// renew says that the file is another.
func (t *throttle) renew() { t.size = 0 }

// wrote counts n bytes and returns how long the writer is to wait.
func (t *throttle) wrote(now time.Time, n int) time.Duration {
	rate := time.Duration(fastRate)
	if t.size >= fastBytes {
		rate = slowRate
	}
	t.size += int64(n)
	if t.ready.Before(now) {
		t.ready = now
	}
	t.ready = t.ready.Add(time.Duration(n) * time.Second / rate)
	return max(0, t.ready.Sub(now)-slack)
}
