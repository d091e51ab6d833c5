// Package tracing exports OpenTelemetry spans of the components, and connects the spans of different components that
// belong to the same write: it propagates the trace context in HTTP headers, and from the write of an object to the
// components that act on the object in an annotation (see Record).
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-traces/
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// flushTimeout is how long Flush waits until the last spans are exported.
const flushTimeout = 2 * time.Second

// Provider exports the spans of one component to a collector. A nil Provider is valid and exports nothing. Its methods
// are safe for concurrent use.
type Provider struct{ provider tracing.TracerProvider }

// New returns the Provider of a component for a configuration; it is nil without one. component is the service name of
// the spans. host is the name of the node or machine; it may be empty. The Provider connects to the collector only when
// there are spans to export. The caller must call Flush when the component stops.
func New(cfg *tracingapi.TracingConfiguration, component, host string) (*Provider, error) {
	if cfg == nil {
		return nil, nil
	}
	about := []attribute.KeyValue{attribute.String("service.name", component)}
	if host != "" {
		about = append(about, attribute.String("host.name", host))
	}
	p, err := tracing.NewProvider(context.Background(), cfg, []otlptracegrpc.Option{}, []resource.Option{resource.WithAttributes(about...)})
	if err != nil {
		return nil, fmt.Errorf("configuring traces: %w", err)
	}
	return &Provider{p}, nil
}

// Tracer returns the tracer of an instrumentation scope, such as "k8s.io/kubernetes/pkg/kubelet". It is nil if p is nil.
func (p *Provider) Tracer(scope string) trace.Tracer {
	if p == nil {
		return nil
	}
	return p.provider.Tracer(scope)
}

// DialOptions returns the options of a gRPC connection whose calls are traced, or none if p is nil.
func (p *Provider) DialOptions() []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(p.provider)))}
}

// Handler returns a handler that traces the requests that h serves, in spans with a name. It returns h if p is nil.
func (p *Provider) Handler(h http.Handler, name string) http.Handler {
	if p == nil {
		return h
	}
	return tracing.WithTracing(h, p.provider, name)
}

// Flush exports the remaining spans, for flushTimeout at most, and stops the export. It must be called when the
// component stops, and does nothing if p is nil.
func (p *Provider) Flush(log *slog.Logger) {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := p.provider.Shutdown(ctx); err != nil {
		log.Debug("exporting remaining traces at shutdown failed, the last spans are lost", "err", err)
	}
}

// StartChild starts a span below the span in ctx. The caller must call end with the result of the operation. If ctx has
// no span that is recorded, StartChild returns ctx, and end does nothing.
func StartChild(ctx context.Context, name string, options ...trace.SpanStartOption) (child context.Context, end func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	child, span := parent.TracerProvider().Tracer("hyperkube").Start(ctx, name, options...)
	return child, func(err error) { End(span, err) }
}

// End ends a span with the result of its operation: err is recorded unless it is nil.
func End(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
