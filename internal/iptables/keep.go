package iptables

import (
	"context"
	"sync"
	"time"
)

const (
	// keepAfter is how long whoever removes rules has for more of it: a chain
	// that is led to again cannot be removed.
	keepAfter = 100 * time.Millisecond
	keepRetry = time.Second
)

// Keep runs the guard and calls mend when others may have removed rules of whose,
// as reloading a firewall does, until ctx ends. mend writes again what is
// missing, and tells whether anything was; when it fails it is called again. It is
// called instead of Run, and once.
func (g *Guard) Keep(ctx context.Context, whose string, mend func(context.Context) (lost bool, err error)) {
	suspect := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { g.Run(ctx, suspect) })
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-suspect:
			timer.Reset(keepAfter)
			continue
		case <-timer.C:
		}
		lost, err := mend(ctx)
		if err != nil && ctx.Err() == nil {
			g.log.Warn("rules that somebody removed cannot be written again, trying again", "of", whose, "error", err)
			timer.Reset(keepRetry)
		} else if lost {
			g.log.Info("somebody removed rules: all are written again", "of", whose)
		}
	}
}
