// Package backoff computes the delays before an operation that has failed is attempted again.
//
// The back-offs of k8s.io/apimachinery/pkg/util/wait count steps, and continue with a constant delay
// after the last one. Package apimachinery is also too large for the container runtime.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"

	"hyperkube/internal/base/lifecycle"
)

// Backoff is an exponential back-off: each delay is twice as long as the one before. It is not safe
// for concurrent use. Copies are independent.
type Backoff struct {
	// First is the first delay. It must be positive.
	First time.Duration
	// Max is the longest delay, without jitter.
	Max time.Duration
	// Jitter is the largest fraction of a delay that is added to it at random, so that clients which
	// failed together do not retry together. Zero adds nothing.
	Jitter float64

	last time.Duration // without jitter; zero at first
}

// Next returns the next delay, including jitter: First at the beginning and after Reset, and then
// twice as long as before, up to Max.
func (b *Backoff) Next() time.Duration {
	if b.last == 0 {
		b.last = min(b.First, b.Max)
	} else if b.last > b.Max/2 {
		b.last = b.Max
	} else {
		b.last *= 2
	}
	return b.last + time.Duration(b.Jitter*rand.Float64()*float64(b.last))
}

// Pause waits for the next delay or until ctx is done, and reports whether the delay has elapsed.
func (b *Backoff) Pause(ctx context.Context) bool { return lifecycle.Pause(ctx, b.Next()) }

// Reset makes First the next delay. Call it after a success.
func (b *Backoff) Reset() { b.last = 0 }

// Started reports whether Next has been called since the last Reset.
func (b *Backoff) Started() bool { return b.last != 0 }

// Skip skips the next n delays, so that an operation that has already failed n times continues with
// a longer delay.
func (b *Backoff) Skip(n int) {
	for ; n > 0 && b.last < b.Max; n-- {
		b.Next()
	}
}
