package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience is how long something is waited for, and when it is said what for:
// nothing that a user waits for is silent for long, and nothing waits for ever.
type patience struct {
	// first and every are when it is first said what is waited for, and how
	// often again; bound is when the wait fails.
	first, every, bound time.Duration
	// say tells the user.
	say func(text string)
	// advice ends the error of a wait that took too long.
	advice string
}

// errTooLong is the cause of the end of a wait that took too long.
var errTooLong = errors.New("this took too long")

// wait runs f, which waits for what. describe says what stands in the way, ""
// if nothing is known; nil never knows.
func (p patience) wait(ctx context.Context, what string, describe func(context.Context) string, f func(context.Context) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, p.bound, errTooLong)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(bounded) }()
	began := time.Now()
	timer := time.NewTimer(p.first)
	defer timer.Stop()
	why := func() string {
		if describe == nil {
			return ""
		}
		// What describes asks what is waited for, which may not answer.
		asking, cancel := context.WithTimeout(ctx, p.every)
		defer cancel()
		if text := describe(asking); text != "" {
			return ": " + text
		}
		return ""
	}
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil && errors.Is(context.Cause(bounded), errTooLong) {
				return fmt.Errorf("%s: not after %s%s; %s", what, p.bound, why(), p.advice)
			}
			return err
		case <-timer.C:
			p.say(fmt.Sprintf("after %s still waiting for %s%s", time.Since(began).Round(time.Second), what, why()))
			timer.Reset(p.every)
		}
	}
}
