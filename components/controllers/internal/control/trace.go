package control

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/base/tracing"
)

// Traced returns sync with traces: if the API server has recorded the trace of a recent write in the object of a key, its
// sync is a span of that trace, with the name sync and the kind of the objects, and so are the API requests of the sync.
// informer has the objects. Without a Tracer, Traced returns sync.
func (e Env) Traced(kind string, informer cache.SharedIndexInformer, sync func(ctx context.Context, key string) error) func(ctx context.Context, key string) error {
	if e.Tracer == nil {
		return sync
	}
	return func(ctx context.Context, key string) error {
		found, _, _ := informer.GetIndexer().GetByKey(key)
		obj, ok := found.(metav1.Object)
		if !ok {
			return sync(ctx, key) // it was deleted
		}
		ctx, end := tracing.StartFor(ctx, e.Tracer, obj, "sync"+kind, trace.WithAttributes(
			attribute.String("k8s.object.kind", kind), attribute.String("k8s.object.name", obj.GetName()), attribute.String("k8s.namespace.name", obj.GetNamespace()),
		))
		err := sync(ctx, key)
		if errors.Is(err, ErrStale) {
			end(nil) // it is retried when the cache has the last write
		} else {
			end(err)
		}
		return err
	}
}
