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

// scope is what the kubelet's spans are of.
const scope = "k8s.io/kubernetes/pkg/kubelet"

// flushFor is how long a kubelet that ends waits for its last spans to be told.
const flushFor = 2 * time.Second

// newTracing makes what tells a collector how long things take; nil without a
// configuration. Nothing is connected to before there is something to tell.
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

// tracesCalls are the options of a connection whose calls are traced.
func tracesCalls(p tracing.TracerProvider) []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(tracing.Propagators()), otelgrpc.WithTracerProvider(p)))}
}

// tracesRequests has the requests that h answers traced.
func tracesRequests(h http.Handler, p tracing.TracerProvider) http.Handler {
	if p == nil {
		return h
	}
	return tracing.WithTracing(h, p, "kubelet")
}

// endTracing tells what is left to be told.
func (k *Kubelet) endTracing() {
	if k.tracing == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushFor)
	defer cancel()
	if err := k.tracing.Shutdown(ctx); err != nil {
		k.log.Debug("telling the last traces failed", "error", err)
	}
}
