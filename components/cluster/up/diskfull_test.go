package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/layout"
)

// errFull is an error of etcd on a full disk.
var errFull = fmt.Errorf("etcd: writing the log: %w", unix.ENOSPC)

func testResumer(t *testing.T, from resumption, service bool) *resumer {
	t.Helper()
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	return newResumer(l, nil, slog.New(slog.DiscardHandler), progress.New(func(progress.Step) {}), from, service)
}

func TestResumeAfterFullDisk(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		from    resumption
		service bool
		ready   bool
		stopped bool
		attempt int // of the program that is executed; 0 if none is executed
	}{
		{name: "another error", err: errors.New("no quorum"), service: true, ready: true},
		{name: "no error", service: true, ready: true},
		{name: "the user waits for the first start", err: errFull},
		{name: "a running cluster in the background", err: errFull, ready: true, attempt: 1},
		{name: "a service during the start", err: errFull, service: true, attempt: 1},
		{name: "a service that was ready", err: errFull, service: true, ready: true, attempt: 1},
		{name: "a quota", err: unix.EDQUOT, ready: true, attempt: 1},
		{name: "resumed, not ready", err: errFull, from: resumption{Attempt: 3}, attempt: 4},
		{name: "resumed, ready", err: errFull, from: resumption{Attempt: 3}, ready: true, attempt: 1},
		{name: "while the cluster stops", err: errFull, service: true, ready: true, stopped: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testResumer(t, c.from, c.service)
			var executed resumption
			r.exec = func(next resumption) error {
				executed = next
				return errors.New("not in a test")
			}
			if c.ready {
				r.setReady()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.stopped {
				cancel()
			}
			if err := r.resume(ctx, c.err); !errors.Is(err, c.err) {
				t.Errorf("returns %v, want %v", err, c.err)
			}
			if executed.Attempt != c.attempt || c.attempt > 0 && executed.Reason != c.err.Error() {
				t.Errorf("executes %+v, want attempt %d", executed, c.attempt)
			}
		})
	}
}

func TestWaitForSpace(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name    string
		from    resumption
		service bool
		full    int   // how often checkDisk reports a full disk
		other   error // the error of checkDisk after that
		want    []time.Duration
	}{
		{name: "first start", full: 1},
		{name: "service with space", service: true},
		{name: "service without space", service: true, full: 3, want: []time.Duration{1 * s, 2 * s, 4 * s}},
		{name: "service on a read-only disk", service: true, other: errors.New("mounted read-only")},
		{name: "resumed", from: resumption{Attempt: 1, Reason: "full"}, want: []time.Duration{1 * s}},
		{name: "resumed often", from: resumption{Attempt: 4, Reason: "full"}, full: 3, want: []time.Duration{8 * s, 16 * s, 30 * s, 30 * s}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testResumer(t, c.from, c.service)
			r.checkDisk = func() error {
				if c.full == 0 {
					return c.other
				}
				c.full--
				return errFull
			}
			var pauses []time.Duration
			r.pause = func(_ context.Context, d time.Duration) bool {
				pauses = append(pauses, d)
				if reason, err := os.ReadFile(r.layout.Stopped()); err != nil || len(reason) == 0 {
					t.Errorf("status has no reason: %v", err)
				}
				return true
			}
			if !r.wait(t.Context()) {
				t.Error("the wait was cancelled")
			}
			if !slices.Equal(pauses, c.want) {
				t.Errorf("pauses %v, want %v", pauses, c.want)
			}
			if _, err := os.Stat(r.layout.Stopped()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("status still has a reason: %v", err)
			}
		})
	}
	r := testResumer(t, resumption{Attempt: 1, Reason: "full"}, false)
	r.pause = func(context.Context, time.Duration) bool { return false }
	if r.wait(t.Context()) {
		t.Error("a cancelled wait starts the cluster")
	}
}
