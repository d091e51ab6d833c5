package progress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hyperkube/internal/base/lifecycle"
)

// Waiter waits for something with a timeout, and reports at intervals what it waits for.
type Waiter struct {
	// FirstReport is the delay before the first report, ReportInterval the interval of further ones.
	// Timeout limits the wait; 0 means no limit.
	FirstReport, ReportInterval, Timeout time.Duration
	// Report reports to the user.
	Report func(text string)
	// Hint is appended to the error of a timeout.
	Hint string
}

// ErrTimeout is the cause of the context of Waiter.Wait when the timeout of the Waiter has passed.
var ErrTimeout = errors.New("timed out")

// Wait runs f, which waits for what, and returns its error. After the timeout it cancels the context of f and returns
// an error with the current problem and the hint. describe returns the current problem, or "" if there is none. It may
// be nil.
func (p Waiter) Wait(ctx context.Context, what string, describe func(context.Context) string, f func(context.Context) error) error {
	waitCtx, cancel := context.WithCancel(ctx)
	if p.Timeout > 0 {
		waitCtx, cancel = context.WithTimeoutCause(ctx, p.Timeout, ErrTimeout)
	}
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(waitCtx) }()
	began := time.Now()
	timer := time.NewTimer(p.FirstReport)
	defer timer.Stop()
	problem := func() string {
		if describe == nil {
			return ""
		}
		// describe may query what is being waited for, which may not answer.
		describeCtx, cancel := context.WithTimeout(ctx, p.ReportInterval)
		defer cancel()
		if text := describe(describeCtx); text != "" {
			return ": " + text
		}
		return ""
	}
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil && errors.Is(context.Cause(waitCtx), ErrTimeout) {
				return fmt.Errorf("timed out waiting for %s after %s%s; %s", what, p.Timeout, problem(), p.Hint)
			}
			return err
		case <-timer.C:
			p.Report(fmt.Sprintf("after %s still waiting for %s%s", time.Since(began).Round(time.Second), what, problem()))
			timer.Reset(p.ReportInterval)
		}
	}
}

// Intervals and timeout of `up`. On a healthy machine each wait is shorter than FirstReport.
const (
	FirstReport    = 5 * time.Second
	ReportInterval = 15 * time.Second
	DefaultTimeout = 4 * time.Minute
)

// UntilReady returns a function for Waiter.Wait that waits until r is ready or its context is done.
func UntilReady(r lifecycle.Readier) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-r.Ready():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
