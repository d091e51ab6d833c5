package images

import (
	"testing"
	"time"
)

func TestBackoffs(t *testing.T) {
	var s backoffs
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	waits := func(key string) time.Duration {
		until, _ := s.backoffUntil(key, now)
		if until.IsZero() {
			return 0
		}
		return until.Sub(now)
	}
	if w := waits("a"); w != 0 {
		t.Errorf("waits %v before the first failure", w)
	}
	for _, seconds := range []int{10, 20, 40, 80, 160, 300, 300} {
		want := time.Duration(seconds) * time.Second
		s.increase("a", "gone", now)
		if w := waits("a"); w != want {
			t.Errorf("waits %v, want %v", w, want)
		}
		now = now.Add(want - 1)
		if w := waits("a"); w != 1 {
			t.Errorf("waits %v just before the end", w)
		}
		now = now.Add(1)
		if w := waits("a"); w != 0 {
			t.Errorf("waits %v at the end", w)
		}
	}
	if w := waits("b"); w != 0 {
		t.Errorf("another key waits %v", w)
	}

	now = now.Add(2 * pullMax)
	s.increase("b", "gone", now)
	if len(s.byKey) != 1 {
		t.Errorf("expired entries remain: %v", s.byKey)
	}
	s.increase("a", "gone", now)
	if w := waits("a"); w != pullBase {
		t.Errorf("waits %v after a long time without failures", w)
	}
	s.reset("a")
	if w := waits("a"); w != 0 {
		t.Errorf("waits %v after a success", w)
	}
}
