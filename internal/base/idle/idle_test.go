package idle

import (
	"testing"
)

func TestShouldRelease(t *testing.T) {
	const mb = 1 << 20
	for name, test := range map[string]struct {
		before, now state
		want        bool
	}{
		"nothing to gain":               {state{}, state{live: 10 * mb, objects: 11 * mb}, false},
		"garbage":                       {state{}, state{live: 10 * mb, objects: 20 * mb}, true},
		"free memory":                   {state{}, state{live: 10 * mb, objects: 10 * mb, free: 5 * mb}, true},
		"high allocation rate":          {state{allocated: mb}, state{allocated: 6 * mb, live: 10 * mb, objects: 20 * mb}, false},
		"low allocation rate":           {state{allocated: 4 * mb}, state{allocated: 6 * mb, live: 10 * mb, objects: 20 * mb}, true},
		"mapped executable":             {state{}, state{live: 10 * mb, objects: 10 * mb, mapped: 30 * mb}, true},
		"needed part of the executable": {state{}, state{live: 10 * mb, objects: 10 * mb, mapped: 22 * mb}, false},
		"fewer objects than live":       {state{}, state{live: 10 * mb, objects: 5 * mb}, false},
	} {
		if got := test.before.shouldRelease(test.now, 20*mb); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestReleaseKeepsProcessAlive releases the pages of the test process, which must continue to work.
func TestReleaseKeepsProcessAlive(t *testing.T) {
	var w metricsReader
	if s := w.read(); s.allocated == 0 || s.objects == 0 {
		t.Errorf("no memory is in use: %+v", s)
	}
	release()
	release()
}

func TestPace(t *testing.T) {
	const mb = 1 << 20
	for live, want := range map[uint64]int{0: 100, 32 * mb: 100, 40 * mb: 100, 42 * mb: 95, 80 * mb: 75, 127 * mb: 55, 128 * mb: 50, 5000 * mb: 50} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MB: %d, want %d", live/mb, got, want)
		}
	}
}
