package fairness

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Keeper keeps the objects that every cluster has: whenever one of the group
// changes, Keep is called soon afterwards.
type Keeper struct {
	// Informers of FlowSchemas and PriorityLevelConfigurations; started by
	// whoever composes the server.
	Informers informers.SharedInformerFactory
	// Keep writes what is missing or was changed.
	Keep func(ctx context.Context) error
	Log  *slog.Logger
}

// again is how long after a failure Keep is called again.
const again = 10 * time.Second

// Run keeps until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	mark := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(any, bool) { mark() },
		UpdateFunc: func(any, any) { mark() },
		DeleteFunc: func(any) { mark() },
	}
	group := k.Informers.Flowcontrol().V1()
	for _, i := range []cache.SharedIndexInformer{group.FlowSchemas().Informer(), group.PriorityLevelConfigurations().Informer()} {
		registration, err := i.AddEventHandler(handler)
		if err != nil {
			return err
		}
		defer func() { _ = i.RemoveEventHandler(registration) }() // fails when there is none
	}
	retry := time.NewTimer(again)
	defer retry.Stop()
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry.C:
		}
		if err := k.Keep(ctx); err != nil && !errors.Is(err, context.Canceled) {
			k.Log.WarnContext(ctx, "Configuration of priority and fairness not kept", "err", err)
			retry.Reset(again)
		}
	}
}
