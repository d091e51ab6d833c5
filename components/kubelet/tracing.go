package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// instrumentationScope is the instrumentation scope of the kubelet's spans.
const instrumentationScope = "k8s.io/kubernetes/pkg/kubelet"

// traceFlushTimeout is how long a kubelet that exits waits until its last spans are exported.
const traceFlushTimeout = 2 * time.Second

// newTracing creates the provider that exports spans to a collector; it returns nil without a
// configuration. It connects only when there are spans to export.
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-traces/#kubelet-traces
func newTracing(cfg *tracingapi.TracingConfiguration, node string) (tracing.TracerProvider, error) {
	if cfg == nil {
		return nil, nil
	}
	about := resource.WithAttributes(attribute.String("service.name", "kubelet"), attribute.String("host.name", node))
	p, err := tracing.NewProvider(context.Background(), cfg, []otlptracegrpc.Option{}, []resource.Option{about})
	if err != nil {
		return nil, fmt.Errorf("configuring traces: %w", err)
	}
	return p, nil
}

// tracingDialOptions returns the options of a gRPC connection whose calls are traced.
func tracingDialOptions(p tracing.TracerProvider) []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(p)))}
}

// withRequestTracing wraps h so that its requests are traced.
func withRequestTracing(h http.Handler, p tracing.TracerProvider) http.Handler {
	if p == nil {
		return h
	}
	return tracing.WithTracing(h, p, "kubelet")
}

// flushTraces flushes the remaining spans.
func (k *Kubelet) flushTraces() {
	if k.tracing == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlushTimeout)
	defer cancel()
	if err := k.tracing.Shutdown(ctx); err != nil {
		k.log.Debug("flushing traces failed", "err", err)
	}
}
