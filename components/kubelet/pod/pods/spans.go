package pods

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/base/tracing"
)

// spanSync, spanTerminating and spanTerminated are the names of the trace spans of operations on pods, as in
// upstream.
const (
	spanSync        = "syncPod"
	spanTerminating = "syncTerminatingPod"
	spanTerminated  = "syncTerminatedPod"
)

// span starts a trace span for an operation on a pod that began at began; the zero time means now. kind is an
// attribute of the span unless it is "". The span belongs to the trace of the write that created or changed the pod, if
// the API server has recorded one recently, and otherwise starts a new trace. Calls with the returned context are part
// of the span. The caller must call end with the result of the operation. Without a tracer, span returns ctx.
func (h *host) span(ctx context.Context, pod *v1.Pod, name string, kind telemetry.Operation, began time.Time) (spanned context.Context, end func(error)) {
	if h.Tracer == nil {
		return ctx, func(error) {}
	}
	about := []attribute.KeyValue{
		attribute.String("k8s.pod.uid", string(pod.UID)), attribute.String("k8s.pod", pod.Namespace+"/"+pod.Name),
		attribute.String("k8s.pod.name", pod.Name), attribute.String("k8s.namespace.name", pod.Namespace),
	}
	if kind != "" {
		about = append(about, attribute.String("k8s.pod.update_type", string(kind)))
	}
	options := []trace.SpanStartOption{trace.WithAttributes(about...)}
	if !began.IsZero() {
		options = append(options, trace.WithTimestamp(began))
	}
	ctx, _ = tracing.Continue(ctx, pod)
	ctx, span := h.Tracer.Start(ctx, name, options...)
	return ctx, func(err error) { tracing.End(span, err) }
}
