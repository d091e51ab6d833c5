package scheduler

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"hyperkube/internal/base/tracing"
)

// instrumentationScope is the instrumentation scope of the scheduler's spans.
const instrumentationScope = "hyperkube/components/scheduler"

// startSpan starts the span of a decision, which began with the attempt to schedule the pod. The API requests that are
// made with the returned context are part of it. The caller must call end when the decision is written: with an error if
// the pod was not bound. If the API server has not recorded the trace of the pod's creation, or traces are not exported,
// startSpan returns ctx.
func (w *writers) startSpan(ctx context.Context, d *decision) (traced context.Context, end func(error)) {
	if w.tracer == nil {
		return ctx, func(error) {}
	}
	return tracing.StartFor(ctx, w.tracer, d.pod, "schedulePod", trace.WithTimestamp(d.start), trace.WithAttributes(
		attribute.String("k8s.pod.uid", string(d.pod.UID)), attribute.String("k8s.pod.name", d.pod.Name),
		attribute.String("k8s.namespace.name", d.pod.Namespace), attribute.String("k8s.node.name", d.node), attribute.Int("attempts", d.attempts),
	))
}
