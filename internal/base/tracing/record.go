package tracing

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotation is the annotation of objects in which Record stores the trace context of the write that created or last
// changed them: a traceparent as in HTTP headers, and the time of the write, separated by a space.
//
// https://www.w3.org/TR/trace-context/#traceparent-header
const Annotation = "hyperkube.io/trace-context"

// window is how long after a write the operations on its object belong to the trace of the write. Later ones, such as
// the restart of a container a day later, have other causes.
const window = 15 * time.Minute

// Record stores the span in ctx in an annotation of obj, a copy that is going to be written, so that the components that
// act on obj continue the trace. If there is no sampled span, it removes the annotation, which then is that of an
// earlier write or was copied from another object.
func Record(ctx context.Context, obj metav1.Object) {
	text := ""
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		text = header(span) + " " + time.Now().UTC().Format(time.RFC3339)
	}
	set(obj, text)
}

// Preserve stores what Record has stored in old in obj, a copy that is going to replace old, whatever a client has sent.
func Preserve(obj, old metav1.Object) { set(obj, old.GetAnnotations()[Annotation]) }

// set sets the annotation of obj, or removes it if text is empty.
func set(obj metav1.Object, text string) {
	annotations := obj.GetAnnotations()
	switch {
	case annotations[Annotation] == text:
		return
	case text == "":
		delete(annotations, Annotation)
	case annotations == nil:
		annotations = map[string]string{Annotation: text}
	default:
		annotations[Annotation] = text
	}
	obj.SetAnnotations(annotations)
}

// Continue returns a context for operations on obj that belong to the write that Record has recorded in it: spans that
// are started with the context, and API requests, become part of the write's trace. It returns ctx and false if nothing
// is recorded or the write is too old.
func Continue(ctx context.Context, obj metav1.Object) (context.Context, bool) {
	text, at, ok := strings.Cut(obj.GetAnnotations()[Annotation], " ")
	if !ok {
		return ctx, false
	}
	written, err := time.Parse(time.RFC3339, at)
	if err != nil || time.Since(written) > window {
		return ctx, false
	}
	span := parse(text)
	if !span.IsSampled() {
		return ctx, false
	}
	return trace.ContextWithRemoteSpanContext(ctx, span), true
}

// StartFor starts a span of an operation on obj in the trace that Record has stored in obj. The caller must call end with
// the result of the operation. If there is no such trace, StartFor returns ctx, and end does nothing.
func StartFor(ctx context.Context, tracer trace.Tracer, obj metav1.Object, name string, options ...trace.SpanStartOption) (traced context.Context, end func(error)) {
	traced, ok := Continue(ctx, obj)
	if !ok {
		return ctx, func(error) {}
	}
	traced, span := tracer.Start(traced, name, options...)
	return traced, func(err error) { End(span, err) }
}

// header returns the value of the header traceparent for a span.
func header(span trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier[headerName]
}

// parse returns the span of a header traceparent. It is not valid if the header is not.
func parse(traceparent string) trace.SpanContext {
	carrier := propagation.MapCarrier{headerName: traceparent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
