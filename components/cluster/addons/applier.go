package addons

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"hyperkube/internal/base/backoff"
)

// Applier applies the objects of the add-ons to a cluster that may have been started before.
//
// Admission policies of users can reject an object. A webhook with the failure policy Fail rejects
// requests until its pods run, and a policy that forbids an add-on rejects it forever. So an object
// that is rejected is retried, and does not delay readiness if it exists from an earlier start.
type Applier struct {
	client  dynamic.Interface
	batches [][]*unstructured.Unstructured
	log     *slog.Logger
	// retryInterval is the delay before the first retry of a rejected object. It doubles with each retry,
	// up to maxRetryInterval.
	retryInterval, maxRetryInterval time.Duration

	ready chan struct{}
	// lastError is the error of the last failed apply; nil if none failed.
	lastError atomic.Pointer[string]
}

// NewApplier returns an Applier that applies batches in order.
func NewApplier(client dynamic.Interface, batches [][]*unstructured.Unstructured, log *slog.Logger) *Applier {
	return &Applier{client: client, batches: batches, log: log, retryInterval: 200 * time.Millisecond, maxRetryInterval: time.Minute, ready: make(chan struct{})}
}

// Ready returns a channel that is closed when every object exists, from this start or an earlier
// one.
func (k *Applier) Ready() <-chan struct{} { return k.ready }

// Describe returns the error of the last failed apply, or "" if none failed.
func (k *Applier) Describe(context.Context) string {
	if text := k.lastError.Load(); text != nil {
		return *text
	}
	return ""
}

// Run applies each object until it succeeds, then waits until ctx is done.
func (k *Applier) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, batch := range k.batches {
		var exist sync.WaitGroup
		for _, obj := range batch {
			exist.Add(1)
			all.Go(func() { k.applyUntilDone(ctx, obj, sync.OnceFunc(exist.Done)) })
		}
		exist.Wait()
	}
	if ctx.Err() == nil {
		close(k.ready)
	}
	all.Wait()
	<-ctx.Done()
	return nil
}

// applyUntilDone applies obj until it succeeds or ctx is done. It calls onExists when the object exists, or when
// it returns.
func (k *Applier) applyUntilDone(ctx context.Context, obj *unstructured.Unstructured, onExists func()) {
	defer onExists()
	retry, before := backoff.Backoff{First: k.retryInterval, Max: k.maxRetryInterval}, ""
	for {
		err := Apply(ctx, k.client, obj)
		if err == nil || ctx.Err() != nil {
			return
		}
		text := err.Error()
		k.lastError.Store(&text)
		if text != before {
			k.log.Warn("applying add-on object failed, retrying", "kind", obj.GetKind(), "namespace", obj.GetNamespace(), "name", obj.GetName(), "err", err)
			before = text
		}
		if _, err := resourceOf(k.client, obj).Get(ctx, obj.GetName(), metav1.GetOptions{}); err == nil {
			onExists()
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}
