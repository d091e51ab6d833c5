package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestNew(t *testing.T) {
	for name, c := range map[string]struct {
		timeout, pid string
		enabled, ok  bool
	}{
		"without WatchdogSec":   {"", "", false, true},
		"this process":          {"4000000", strconv.Itoa(os.Getpid()), true, true},
		"any process":           {"4000000", "", true, true},
		"parent of the process": {"4000000", "1", false, true},
		"not a number":          {"4s", "", false, false},
		"zero":                  {"0", "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WATCHDOG_USEC", c.timeout)
			t.Setenv("WATCHDOG_PID", c.pid)
			w, err := New(nil, slog.Default())
			if (w != nil) != c.enabled || (err == nil) != c.ok {
				t.Fatalf("got %v, %v", w, err)
			}
			if w != nil && w.interval != time.Second {
				t.Errorf("interval is %s", w.interval)
			}
		})
	}
}

// TestRun checks that systemd is notified only after probes that succeed, and not while one hangs.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notified []time.Duration
		began := time.Now()
		probes := 0
		w := &Watchdog{
			interval: time.Second, log: slog.New(slog.DiscardHandler),
			notify: func(state string) {
				if state != "WATCHDOG=1" {
					t.Errorf("notified of %s", state)
				}
				notified = append(notified, time.Since(began))
			},
			probe: func(ctx context.Context) error {
				probes++
				switch probes {
				case 2:
					return errors.New("broken")
				case 3: // hangs until its timeout
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{0, 3 * time.Second, 4 * time.Second}; !slices.Equal(notified, want) {
			t.Errorf("notified at %v, want %v", notified, want)
		}
	})
}
