package fairness

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// DefaultsReconciler restores the default FlowSchemas and PriorityLevelConfigurations: it calls
// Reconcile after each change of such an object.
type DefaultsReconciler struct {
	// Informers of FlowSchemas and PriorityLevelConfigurations. The caller starts them.
	Informers informers.SharedInformerFactory
	// Reconcile writes objects that are missing or changed.
	Reconcile func(ctx context.Context) error
	// Log receives warnings about failures. It must not be nil.
	Log *slog.Logger
}

// retryInterval is the delay before Reconcile is called again after a failure.
const retryInterval = 10 * time.Second

// Run calls Reconcile for the existing objects, after changes, and 10 seconds after failures, until ctx is canceled.
// It returns an error only if the informers have stopped.
func (k *DefaultsReconciler) Run(ctx context.Context) error {
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
		defer func() { _ = i.RemoveEventHandler(registration) }() // it fails only if there is no handler
	}
	retry := time.NewTimer(retryInterval)
	defer retry.Stop()
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry.C:
		}
		if err := k.Reconcile(ctx); err != nil && !errors.Is(err, context.Canceled) {
			k.Log.WarnContext(ctx, "restoring default FlowSchemas and PriorityLevelConfigurations failed; defaults that were deleted or changed keep affecting request limits, retrying in 10 seconds", "err", err)
			retry.Reset(retryInterval)
		}
	}
}
