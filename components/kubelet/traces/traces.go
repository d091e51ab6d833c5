// Package traces exports OpenTelemetry spans of the kubelet.
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-traces/#kubelet-traces
package traces

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// instrumentationScope is the instrumentation scope of the kubelet's spans, as in upstream.
const instrumentationScope = "k8s.io/kubernetes/pkg/kubelet"

// flushTimeout is how long a kubelet that exits waits until its last spans are exported.
const flushTimeout = 2 * time.Second

// Provider exports spans to a collector. A nil Provider is valid and exports nothing. Its methods are
// safe for concurrent use.
type Provider struct{ provider tracing.TracerProvider }

// New returns the Provider for a configuration; it is nil without one. node is the node name. It connects to
// the collector only when there are spans to export.
func New(cfg *tracingapi.TracingConfiguration, node string) (*Provider, error) {
	if cfg == nil {
		return nil, nil
	}
	about := resource.WithAttributes(attribute.String("service.name", "kubelet"), attribute.String("host.name", node))
	p, err := tracing.NewProvider(context.Background(), cfg, []otlptracegrpc.Option{}, []resource.Option{about})
	if err != nil {
		return nil, fmt.Errorf("configuring traces: %w", err)
	}
	return &Provider{p}, nil
}

// Tracer returns the tracer of the kubelet's operations. It is nil if p is nil.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil {
		return nil
	}
	return p.provider.Tracer(instrumentationScope)
}

// DialOptions returns the options of a gRPC connection whose calls are traced, or none if p is nil.
func (p *Provider) DialOptions() []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(p.provider)))}
}

// Handler returns a handler that traces the requests that h serves. It returns h if p is nil.
func (p *Provider) Handler(h http.Handler) http.Handler {
	if p == nil {
		return h
	}
	return tracing.WithTracing(h, p.provider, "kubelet")
}

// Flush exports the remaining spans, for flushTimeout at most, and stops the export. It must be called when
// the kubelet exits.
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
