// Package tracetest is an OpenTelemetry collector for tests, which keeps the spans that it receives.
package tracetest

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
)

// Span is a span that a Collector has received.
type Span struct {
	// Service and Host are the names in the resource of the span: the component and the node. Host may be empty.
	Service, Host string
	Name          string
	// Trace and ID identify the span, and Parent is the ID of its parent; it is empty for the root of a trace. All are
	// hexadecimal.
	Trace, ID, Parent string
	// Links are the traces of other spans to which the span has links.
	Links      []string
	Attributes map[string]string
	Begin, End time.Time
	// Error is the description of the span's status, or empty if that is not an error.
	Error string
}

// Collector receives spans over OTLP/gRPC. Its methods are safe for concurrent use.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	// Endpoint is the address and port at which the collector listens.
	Endpoint string

	mu      sync.Mutex
	spans   []Span        // guarded by mu
	changed chan struct{} // closed and replaced when spans changes; guarded by mu
}

// Start returns a Collector that listens on a free port of 127.0.0.1 until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, l)
}

// Serve returns a Collector that serves the connections of l until the test ends.
func Serve(t testing.TB, l net.Listener) *Collector {
	c := &Collector{Endpoint: l.Addr().String(), changed: make(chan struct{})}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return c
}

// Export implements the service of the collector.
func (c *Collector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		about := attributes(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Service: about["service.name"], Host: about["host.name"], Name: s.GetName(), Attributes: attributes(s.GetAttributes()),
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Begin: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())), Error: s.GetStatus().GetMessage(),
				}
				for _, link := range s.GetLinks() {
					span.Links = append(span.Links, hex.EncodeToString(link.GetTraceId()))
				}
				c.spans = append(c.spans, span)
			}
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

// attributes returns attributes as text.
func attributes(all []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		switch v := a.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		default:
			out[a.GetKey()] = a.GetValue().String()
		}
	}
	return out
}

// Spans returns the spans that have been received so far, in the order of their beginnings.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return a.Begin.Compare(b.Begin) })
	return all
}

// Find returns the first span with a name, or nil if none has been received.
func (c *Collector) Find(name string) *Span {
	for _, s := range c.Spans() {
		if s.Name == name {
			return &s
		}
	}
	return nil
}

// Await waits until complete accepts the spans that have been received, and returns these. It returns the spans and false
// if ctx is done before.
func (c *Collector) Await(ctx context.Context, complete func([]Span) bool) ([]Span, bool) {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		all := c.Spans()
		if complete(all) {
			return all, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return all, false
		}
	}
}
