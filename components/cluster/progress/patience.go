package progress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hyperkube/internal/lifecycle"
)

// Patience is how long something is waited for, and when it is said what for:
// nothing that a user waits for is silent for long, and nothing waits for ever.
type Patience struct {
	// First and every are when it is first said what is waited for, and how
	// often again; bound is when the wait fails, zero is never.
	First, Every, Bound time.Duration
	// Say tells the user.
	Say func(text string)
	// Advice ends the error of a wait that took too long.
	Advice string
}

// ErrTooLong is the cause of the end of a wait that took too long.
var ErrTooLong = errors.New("this took too long")

// Wait runs f, which waits for what. describe says what stands in the way, ""
// if nothing is known; nil never knows.
func (p Patience) Wait(ctx context.Context, what string, describe func(context.Context) string, f func(context.Context) error) error {
	bounded, cancel := context.WithCancel(ctx)
	if p.Bound > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, p.Bound, ErrTooLong)
	}
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(bounded) }()
	began := time.Now()
	timer := time.NewTimer(p.First)
	defer timer.Stop()
	why := func() string {
		if describe == nil {
			return ""
		}
		// What describes asks what is waited for, which may not answer.
		asking, cancel := context.WithTimeout(ctx, p.Every)
		defer cancel()
		if text := describe(asking); text != "" {
			return ": " + text
		}
		return ""
	}
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil && errors.Is(context.Cause(bounded), ErrTooLong) {
				return fmt.Errorf("%s: not after %s%s; %s", what, p.Bound, why(), p.Advice)
			}
			return err
		case <-timer.C:
			p.Say(fmt.Sprintf("after %s still waiting for %s%s", time.Since(began).Round(time.Second), what, why()))
			timer.Reset(p.Every)
		}
	}
}

// The patience of `up`: on a healthy machine no wait comes near the first.
const (
	FirstWord = 5 * time.Second
	EveryWord = 15 * time.Second
	WaitBound = 4 * time.Minute
)

// UntilReady waits for a component.
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
