package logs

import (
	"testing"
	"time"
)

// TestThrottle writes in bursts, slowly, and at full speed.
func TestThrottle(t *testing.T) {
	now := time.Unix(1000, 0)
	var calm throttle
	for range 1000 {
		if wait := calm.reserve(now, 10<<10); wait != 0 {
			t.Fatalf("a calm writer waits %s", wait)
		}
		now = now.Add(10 * time.Millisecond)
	}
	var busy throttle
	began := now
	total := 0
	for now.Sub(began) < 10*time.Second {
		n := 1 << 20
		now = now.Add(busy.reserve(now, n) + time.Microsecond)
		total += n
	}
	if most := fastBytes + 11*slowRate; total > most || total < fastBytes {
		t.Errorf("in 10 s came %d MiB, at most %d are to", total>>20, most>>20)
	}
	busy.reset()
	now = now.Add(time.Second)
	if wait := busy.reserve(now, 1<<20); wait != 0 {
		t.Errorf("with a new file it waits %s", wait)
	}
}
