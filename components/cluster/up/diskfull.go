package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/etcd"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/layout"
)

// On a full disk etcd fails. It cannot be restarted in the same process because it leaves
// goroutines and files behind. So the main process executes its own binary again, with the same PID
// and the lock of its PID file, waits for free space, and starts the cluster again. The runtime and
// the pods are separate processes and keep running.

// resumeEnv is the environment variable that contains the resumption as JSON. It is set only if the main process has
// executed itself.
const resumeEnv = "HYPERKUBE_RESUME"

// resumption is the state that a main process passes to itself when it executes its program again.
type resumption struct {
	// LockFD is the descriptor of the lock of the PID file.
	LockFD int `json:"lockFD"`
	// Reason is why the cluster stopped.
	Reason string `json:"reason"`
	// Attempt counts the starts since the cluster was last ready and then stopped by a full disk; the first is 1. It is 0
	// if the addresses of the machine changed.
	Attempt int `json:"attempt"`
}

// resumed returns the state that this process has passed to itself, or false if it has not executed
// itself.
func resumed() (resumption, bool, error) {
	text, ok := os.LookupEnv(resumeEnv)
	if !ok {
		return resumption{}, false, nil
	}
	_ = os.Unsetenv(resumeEnv) // fails only for an invalid name
	var r resumption
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, false, fmt.Errorf("reading %s: %w", resumeEnv, err)
	}
	return r, true, nil
}

// resumer restarts a cluster that was stopped by a full disk or by a change of the machine's addresses.
type resumer struct {
	layout layout.Node
	log    *slog.Logger
	steps  *progress.Steps
	// resumption is the state passed to this process. It is the zero value if the process has not executed itself.
	resumption
	// service is true if the cluster is restarted even if it was never ready, because no user waits
	// for the error.
	service bool
	// ready is set when the cluster is ready. From then on, the process restarts the cluster after a full disk.
	ready atomic.Bool
	// checkDisk returns an error of a full disk while there is too little space. pause waits for
	// the duration, or returns false when ctx is canceled.
	checkDisk func() error
	pause     func(context.Context, time.Duration) bool
	// exec executes this program with the resumption. It returns only if that fails.
	exec func(resumption) error
}

// newResumer returns the resumer of the main process that holds lock.
func newResumer(l layout.Node, lock *pidlock.Lock, log *slog.Logger, steps *progress.Steps, from resumption, service bool) *resumer {
	return &resumer{
		layout: l, log: log, steps: steps, resumption: from, service: service || from != (resumption{}),
		checkDisk: func() error { return preflight.CheckDisk(l) }, pause: lifecycle.Pause,
		exec: func(r resumption) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding the hyperkube binary: %w", err)
			}
			return lock.Exec(self, os.Args, func(fd int) ([]string, error) {
				r.LockFD = fd
				data, err := json.Marshal(r)
				return append(os.Environ(), resumeEnv+"="+string(data)), err
			})
		},
	}
}

// startBackoff is the back-off of starts: 1 s, 2 s, 4 s and so on, at most 30 s.
func startBackoff() backoff.Backoff {
	return backoff.Backoff{First: time.Second, Max: 30 * time.Second}
}

// wait blocks until the cluster may be started. After a full disk, it first waits for the back-off of this attempt. If
// service is set, it then waits until there is enough free space. It returns false when ctx is canceled.
func (r *resumer) wait(ctx context.Context) bool {
	reported, retry := r.Attempt > 0, startBackoff()
	retry.Skip(r.Attempt - 1)
	if reported {
		r.report(r.Reason)
		if !r.pause(ctx, retry.Next()) {
			return false
		}
	}
	for r.service {
		err := r.checkDisk()
		if !etcd.IsDiskFull(err) {
			break
		}
		reported = true
		r.report(err.Error())
		if !r.pause(ctx, retry.Next()) {
			return false
		}
	}
	if reported {
		progress.NotifySystemd("STATUS=starting")
		_ = os.Remove(r.layout.Stopped()) // does not exist if it could not be written
	}
	return true
}

// report publishes why the cluster is not started: in the log, to systemd, to the user who waits for the start, and in
// a file for `hyperkube status`. It also notifies the watchdog of systemd.
func (r *resumer) report(reason string) {
	r.log.Error("disk is full; the cluster is stopped but its pods keep running, starting it when there is free space, checked with back-off", "reason", reason)
	r.steps.Send(progress.Step{Text: "waiting for free disk space: " + reason, Waiting: true})
	// This process works, although the cluster that the watchdog checks has stopped.
	progress.NotifySystemd("STATUS=waiting for free disk space: " + reason + "\nWATCHDOG=1")
	if err := os.WriteFile(r.layout.Stopped(), []byte(reason), 0o644); err != nil {
		r.log.Warn("writing to a file why the cluster is stopped (its disk is full) failed; `hyperkube status` does not show the reason, retrying at the next check of the disk", "file", r.layout.Stopped(), "err", err)
	}
}

// setReady records that the cluster is ready. From now on, this process restarts it after a full
// disk.
func (r *resumer) setReady() { r.ready.Store(true) }

// resume executes this program to restart the cluster after the error err, which must be caused by a full disk or by a
// change of the machine's addresses. It returns err if another error stopped the cluster, if ctx is canceled, if executing
// fails, or if the disk is full, the cluster was never ready and a user waits for the error of the start.
func (r *resumer) resume(ctx context.Context, err error) error {
	change, addressesChanged := errors.AsType[*addressChange](err)
	if ctx.Err() != nil || !addressesChanged && (!etcd.IsDiskFull(err) || !r.service && !r.ready.Load()) {
		return err
	}
	var next resumption
	if addressesChanged {
		next.Reason = change.Error()
		r.log.Info("addresses of the machine changed, restarting the cluster with the new ones", "before", change.before, "after", change.after)
	} else {
		next = resumption{Reason: err.Error(), Attempt: r.Attempt + 1}
		if r.ready.Load() {
			next.Attempt = 1
		}
		r.log.Error("disk is full; the cluster stops but its pods keep running, starting it again when there is free space", "err", err)
	}
	if failed := r.exec(next); failed != nil {
		r.log.Error("executing hyperkube to restart the cluster failed; this process exits and the cluster is stopped: free disk space if the disk is full, then run `hyperkube up`", "reason", next.Reason, "err", failed)
	}
	return err
}
