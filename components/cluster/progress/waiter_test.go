package progress

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaiter(t *testing.T) {
	forever := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	failed := errors.New("failed")
	for _, c := range []struct {
		name     string
		f        func(context.Context) error
		describe func(context.Context) string
		reports  int
		err      string
	}{
		{"immediately", func(context.Context) error { return nil }, nil, 0, ""},
		{"fails", func(context.Context) error { return failed }, nil, 0, "failed"},
		{"slow", func(context.Context) error { time.Sleep(6 * time.Second); return nil }, nil, 1, ""},
		{"never", forever, func(context.Context) string { return "no pod" }, 6, "timed out waiting for DNS after 1m0s: no pod; try again"},
		{"never, without a description", forever, func(ctx context.Context) string { <-ctx.Done(); return "" }, 3, "timed out waiting for DNS after 1m0s; try again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reports []string
				p := Waiter{FirstReport: 5 * time.Second, ReportInterval: 10 * time.Second, Timeout: time.Minute, Hint: "try again",
					Report: func(text string) { reports = append(reports, text) }}
				err := p.Wait(t.Context(), "DNS", c.describe, c.f)
				if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
					t.Errorf("got %v, want %q", err, c.err)
				}
				if len(reports) != c.reports {
					t.Errorf("reported %q", reports)
				}
				if len(reports) > 0 && !strings.HasPrefix(reports[0], "after 5s still waiting for DNS") {
					t.Errorf("reported %q", reports[0])
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // without a timeout
		p := Waiter{FirstReport: time.Hour, ReportInterval: time.Hour, Report: func(string) {}}
		if err := p.Wait(t.Context(), "DNS", nil, func(context.Context) error { time.Sleep(100 * time.Hour); return nil }); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := Waiter{FirstReport: time.Hour, ReportInterval: time.Hour, Timeout: time.Hour}
	if err := p.Wait(ctx, "DNS", nil, forever); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interruption: %v", err)
	}
}
