package progress

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPatience(t *testing.T) {
	forever := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	failed := errors.New("failed")
	for _, c := range []struct {
		name     string
		f        func(context.Context) error
		describe func(context.Context) string
		said     int
		err      string
	}{
		{"at once", func(context.Context) error { return nil }, nil, 0, ""},
		{"fails", func(context.Context) error { return failed }, nil, 0, "failed"},
		{"slow", func(context.Context) error { time.Sleep(6 * time.Second); return nil }, nil, 1, ""},
		{"never", forever, func(context.Context) string { return "no pod" }, 6, "DNS: not after 1m0s: no pod; try again"},
		{"never, and nobody knows why", forever, func(ctx context.Context) string { <-ctx.Done(); return "" }, 3, "DNS: not after 1m0s; try again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said []string
				p := Patience{First: 5 * time.Second, Every: 10 * time.Second, Bound: time.Minute, Advice: "try again",
					Say: func(text string) { said = append(said, text) }}
				err := p.Wait(t.Context(), "DNS", c.describe, c.f)
				if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
					t.Errorf("got %v, want %q", err, c.err)
				}
				if len(said) != c.said {
					t.Errorf("said %q", said)
				}
				if len(said) > 0 && !strings.HasPrefix(said[0], "after 5s still waiting for DNS") {
					t.Errorf("said %q", said[0])
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // without a bound
		p := Patience{First: time.Hour, Every: time.Hour, Say: func(string) {}}
		if err := p.Wait(t.Context(), "DNS", nil, func(context.Context) error { time.Sleep(100 * time.Hour); return nil }); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := Patience{First: time.Hour, Every: time.Hour, Bound: time.Hour}
	if err := p.Wait(ctx, "DNS", nil, forever); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interruption: %v", err)
	}
}
