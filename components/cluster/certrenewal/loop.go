package certrenewal

import (
	"context"
	"log/slog"
	"time"

	"hyperkube/internal/base/lifecycle"
)

const (
	// MaxCheckInterval is the maximum interval between two checks for due renewals. It is short because a
	// machine may be suspended, or its clock may be set.
	MaxCheckInterval = time.Hour
	// retryInterval is the pause after which RunRenewal calls renew again if it has failed.
	retryInterval = time.Minute
)

// RunRenewal calls renew immediately and then repeatedly until ctx is canceled: at the time next that renew has
// returned, but at the latest after MaxCheckInterval, and after retryInterval if renew has failed. It logs errors with
// message.
func RunRenewal(ctx context.Context, log *slog.Logger, message string, renew func() (next time.Time, err error)) error {
	var pause time.Duration
	for {
		if !lifecycle.Pause(ctx, pause) {
			return nil
		}
		next, err := renew()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.Error(message, "err", err)
			pause = retryInterval
		default:
			pause = min(MaxCheckInterval, max(time.Until(next), time.Second))
		}
	}
}
