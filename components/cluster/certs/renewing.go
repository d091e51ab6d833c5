package certs

import (
	"context"
	"log/slog"
	"time"

	"hyperkube/internal/lifecycle"
)

const (
	// RenewLook is the longest time between two looks at what is due: a machine
	// may sleep, and its clock be set.
	RenewLook = time.Hour
	// renewRetry is how long after a failure it is tried again.
	renewRetry = time.Minute
)

// KeepRenewing calls renew until ctx ends: at once, again when it said that something
// will be due, and soon after a failure, which is logged with message.
func KeepRenewing(ctx context.Context, log *slog.Logger, message string, renew func() (next time.Time, err error)) error {
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
			log.Error(message, "error", err)
			pause = renewRetry
		default:
			pause = min(RenewLook, max(time.Until(next), time.Second))
		}
	}
}
