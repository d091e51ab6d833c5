package packetfilter

import (
	"context"
	"sync"
	"time"
)

const (
	// restoreDelay is the delay before rules are restored. It gives the program that removes rules
	// time to finish, because a chain that is referenced again cannot be removed.
	restoreDelay = 100 * time.Millisecond
	restoreRetry = time.Second
)

// Maintain runs the guard until ctx is done, and calls restore shortly after another program may
// have removed rules of the writer's user, for example by reloading a firewall. restore writes
// missing rules and reports whether any were missing. If it returns an error, Maintain logs the
// error and calls it again after a second. Call Maintain once, instead of Run.
func (w *Writer) Maintain(ctx context.Context, restore func(context.Context) (lost bool, err error)) {
	suspect := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { w.Run(ctx, suspect) })
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-suspect:
			timer.Reset(restoreDelay)
			continue
		case <-timer.C:
		}
		lost, err := restore(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Warn("checking or restoring packet filter rules failed; if another program has removed some, connections that need them fail until a retry succeeds, retrying", "owner", w.cfg.Owner, "retryAfter", restoreRetry, "err", err)
			timer.Reset(restoreRetry)
		} else if lost {
			w.log.Info("packet filter rules restored after another program removed them; connections that need the rules may have failed for a moment", "owner", w.cfg.Owner)
		}
	}
}
