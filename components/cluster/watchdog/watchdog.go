// Package watchdog keeps systemd informed that this process works, so that systemd restarts a process that hangs.
//
// https://www.freedesktop.org/software/systemd/man/latest/sd_watchdog_enabled.html
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/base/lifecycle"
)

// Probe returns an error if this process does not work. Its context is canceled after one interval of the watchdog, a
// quarter of WatchdogSec.
type Probe func(ctx context.Context) error

// Watchdog notifies systemd while its probe succeeds. There is no timer that notifies independently of the probe, because
// a process whose timers run may hang nevertheless.
type Watchdog struct {
	interval time.Duration
	probe    Probe
	notify   func(state string)
	log      *slog.Logger
}

// notificationsPerTimeout is how often systemd is notified within its timeout, so that one late probe has no consequence.
const notificationsPerTimeout = 4

// New returns the watchdog of this process. It returns nil if systemd expects no notifications: if WatchdogSec is not
// set in its unit, or if this process is not the main process of a unit.
func New(probe Probe, log *slog.Logger) (*Watchdog, error) {
	text, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	if text == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	timeout, err := strconv.ParseUint(text, 10, 63)
	if err != nil || timeout == 0 {
		return nil, fmt.Errorf("parsing WATCHDOG_USEC: %q is not a positive number of microseconds", text)
	}
	return &Watchdog{
		interval: time.Duration(timeout) * time.Microsecond / notificationsPerTimeout, probe: probe, notify: progress.NotifySystemd, log: log,
	}, nil
}

// Start starts the watchdog of this process in group. It does nothing if systemd expects no notifications.
func Start(ctx context.Context, group *lifecycle.Group, probe Probe, log *slog.Logger) error {
	w, err := New(probe, log)
	if w != nil {
		group.Start(ctx, "watchdog", w)
	}
	return err
}

// Run probes this process once per interval and notifies systemd after each success, until ctx is done.
func (w *Watchdog) Run(ctx context.Context) error {
	for {
		began := time.Now()
		w.check(ctx)
		if !lifecycle.Pause(ctx, w.interval-time.Since(began)) {
			return nil
		}
	}
}

// check runs the probe once, and notifies systemd if it succeeds. Otherwise it logs a warning, unless ctx is done.
func (w *Watchdog) check(ctx context.Context) {
	probing, cancel := context.WithTimeout(ctx, w.interval)
	defer cancel()
	switch err := w.probe(probing); {
	case err == nil:
		w.notify("WATCHDOG=1")
	case ctx.Err() == nil:
		w.log.Warn("health check of this process failed; systemd restarts the process if no check succeeds within WatchdogSec, checking again after a quarter of it", "err", err)
	}
}
