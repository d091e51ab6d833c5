package logs

import "time"

// Log files are rotated by the kubelet, which checks their size every few seconds. A container that
// writes at full speed could fill the disk in between. So the write rate of a file is limited: fast
// up to a size, then at a rate that leaves time for rotation. Writers above the limit are
// throttled, as on a slow terminal.
const (
	// fastBytes is the size of a file up to which fastRate applies. It is larger than the kubelet's
	// default maximum log size.
	fastBytes = 16 << 20
	// fastRate and slowRate are in bytes per second.
	fastRate = 32 << 20
	slowRate = 4 << 20
	// burst is how far a log may exceed its rate, as a duration.
	burst = 250 * time.Millisecond
)

// throttle limits the write rate of one container's log, so that the kubelet can rotate it before it fills the disk.
// The zero value is ready to use.
type throttle struct {
	size  int64     // bytes that this process has written to the current file
	ready time.Time // when the bytes written so far are within the rate
}

// reset starts with a new, empty log file after a rotation.
func (t *throttle) reset() { t.size = 0 }

// reserve counts n bytes that were written at the time now. It returns how long the writer must wait before it writes
// more, or 0.
func (t *throttle) reserve(now time.Time, n int) time.Duration {
	rate := time.Duration(fastRate)
	if t.size >= fastBytes {
		rate = slowRate
	}
	t.size += int64(n)
	if t.ready.Before(now) {
		t.ready = now
	}
	t.ready = t.ready.Add(time.Duration(n) * time.Second / rate)
	return max(0, t.ready.Sub(now)-burst)
}
