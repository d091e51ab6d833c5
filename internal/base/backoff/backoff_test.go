package backoff

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func delays(b *Backoff, n int) (out []time.Duration) {
	for range n {
		out = append(out, b.Next())
	}
	return out
}

func TestNext(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		b    Backoff
		skip int
		want []time.Duration
	}{
		{Backoff{First: s, Max: 30 * s}, 0, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}},
		{Backoff{First: s, Max: 4 * s}, 0, []time.Duration{1 * s, 2 * s, 4 * s, 4 * s}},
		{Backoff{First: 5 * s, Max: 4 * s}, 0, []time.Duration{4 * s, 4 * s}},
		{Backoff{First: s, Max: 1<<63 - 1}, 33, []time.Duration{1 << 33 * s, 1<<63 - 1, 1<<63 - 1}},
		{Backoff{First: s, Max: 30 * s}, 2, []time.Duration{4 * s, 8 * s}},
		{Backoff{First: s, Max: 30 * s}, 1 << 62, []time.Duration{30 * s}},
		{Backoff{First: s, Max: 30 * s}, -1, []time.Duration{1 * s}},
	} {
		b := c.b
		b.Skip(c.skip)
		if got := delays(&b, len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.b, got, c.want)
		}
		started := b.Started()
		b.Reset()
		if got := b.Next(); !started || got != min(c.b.First, c.b.Max) {
			t.Errorf("%+v: started %t, after a reset %v", c.b, started, got)
		}
	}
}

func TestJitter(t *testing.T) {
	b := Backoff{First: time.Second, Max: time.Second, Jitter: 0.5}
	first, differ := b.Next(), false
	for range 100 {
		d := b.Next()
		differ = differ || d != first
		if d < time.Second || d > 1500*time.Millisecond {
			t.Errorf("a delay of %v", d)
		}
	}
	if !differ {
		t.Error("all delays are equal")
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		began, b := time.Now(), Backoff{First: time.Second, Max: time.Minute}
		for i, want := range []bool{true, true, false} {
			if got := b.Pause(ctx); got != want {
				t.Errorf("pause %d: %t", i, got)
			}
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
