package traces

import (
	"context"
	"net"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// spans is a trace collector that records the names of the spans that it receives.
type spans struct {
	collector.UnimplementedTraceServiceServer
	received chan string
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range r.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" || a.Key == "host.name" {
				service += a.Value.GetStringValue() + " "
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				s.received <- service + span.Name
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestTracing checks that spans arrive at the collector, at the latest when the kubelet exits.
func TestTracing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := &spans{received: make(chan string, 100)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, got)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	if p, err := New(nil, "n"); p != nil || err != nil || p.DialOptions() != nil || p.Tracer() != nil {
		t.Errorf("without a configuration: %v, %v", p, err)
	}
	endpoint, all := l.Addr().String(), int32(1000000)
	p, err := New(&tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &all}, "n")
	if err != nil {
		t.Fatal(err)
	}
	_, span := p.Tracer().Start(t.Context(), "syncPod")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.provider.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if text := <-got.received; text != "n kubelet syncPod" && text != "kubelet n syncPod" {
		t.Errorf("got %q", text)
	}
}
