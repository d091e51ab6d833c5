package lifecycle

import (
	"context"
	"time"
)

// Pause waits for d, or until ctx is done, and reports whether d has elapsed. Use it for retries
// and rate limits only. To wait for an event, use a notification.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
