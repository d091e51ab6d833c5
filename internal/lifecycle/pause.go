package lifecycle

import (
	"context"
	"time"
)

// Pause waits for d, or until ctx ends, and tells whether d went by. It is for trying
// again and for limits of pace; whoever waits for something that can tell of itself
// waits for that.
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
