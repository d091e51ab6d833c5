package images

import (
	"testing"
	"time"
)

func TestBackoffs(t *testing.T) {
	var s backoffs
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	waits := func(key string) time.Duration {
		until, _ := s.waits(key, now)
		if until.IsZero() {
			return 0
		}
		return until.Sub(now)
	}
	if w := waits("a"); w != 0 {
		t.Errorf("waits %v before anything has failed", w)
	}
	for _, seconds := range []int{10, 20, 40, 80, 160, 300, 300} {
		want := time.Duration(seconds) * time.Second
		s.failed("a", "gone", now)
		if w := waits("a"); w != want {
			t.Errorf("waits %v, want %v", w, want)
		}
		now = now.Add(want - 1)
		if w := waits("a"); w != 1 {
			t.Errorf("waits %v a nanosecond before the end", w)
		}
		now = now.Add(1)
		if w := waits("a"); w != 0 {
			t.Errorf("waits %v at the end", w)
		}
	}
	if w := waits("b"); w != 0 {
		t.Errorf("another waits %v", w)
	}

	now = now.Add(2 * pullMax)
	s.failed("b", "gone", now)
	if len(s.of) != 1 {
		t.Errorf("what is over is kept: %v", s.of)
	}
	s.failed("a", "gone", now)
	if w := waits("a"); w != pullBase {
		t.Errorf("waits %v when all was well for long", w)
	}
	s.forget("a")
	if w := waits("a"); w != 0 {
		t.Errorf("waits %v after it went well", w)
	}
}
