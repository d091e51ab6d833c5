package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"hyperkube/internal/base/tracing/tracetest"
)

// start returns a Provider that samples all spans, and its collector.
func start(t *testing.T) (*Provider, *tracetest.Collector) {
	collector := tracetest.Start(t)
	all := int32(1_000_000)
	p, err := New(&tracingapi.TracingConfiguration{Endpoint: &collector.Endpoint, SamplingRatePerMillion: &all}, "kubelet", "n")
	if err != nil {
		t.Fatal(err)
	}
	return p, collector
}

func TestNoConfiguration(t *testing.T) {
	p, err := New(nil, "kubelet", "n")
	if p != nil || err != nil || p.DialOptions() != nil || p.Tracer("x") != nil {
		t.Errorf("got %v, %v", p, err)
	}
	p.Flush(slog.Default())
	ctx, end := StartChild(t.Context(), "child")
	if end(nil); ctx != t.Context() {
		t.Error("a span without parent was started")
	}
}

// TestExport checks that spans, with their errors, arrive at the collector at the latest when the component stops.
func TestExport(t *testing.T) {
	p, collector := start(t)
	ctx, span := p.Tracer("scope").Start(t.Context(), "syncPod")
	_, end := StartChild(ctx, "child")
	end(errors.New("broken"))
	End(span, nil)
	p.Flush(slog.Default())
	child, parent := collector.Find("child"), collector.Find("syncPod")
	if child == nil || parent == nil || child.Parent != parent.ID || child.Trace != parent.Trace || child.Error != "broken" || parent.Error != "" {
		t.Errorf("got %+v, %+v", child, parent)
	}
	if parent.Service != "kubelet" || parent.Host != "n" {
		t.Errorf("got %+v", parent)
	}
}

// TestRecord checks that a trace continues from the write of an object to the operations on it.
func TestRecord(t *testing.T) {
	p, _ := start(t)
	defer p.Flush(slog.Default())
	ctx, span := p.Tracer("scope").Start(t.Context(), "write")
	pod := &corev1.Pod{}
	Record(ctx, pod)
	continued, ok := Continue(t.Context(), pod)
	if got := trace.SpanContextFromContext(continued); !ok || got.TraceID() != span.SpanContext().TraceID() || got.SpanID() != span.SpanContext().SpanID() || !got.IsRemote() {
		t.Errorf("got %v from %v", got, pod.Annotations)
	}
	value := pod.Annotations[Annotation]
	header, _, _ := strings.Cut(value, " ")
	for name, text := range map[string]string{
		"old":            header + " " + time.Now().Add(-window-time.Second).Format(time.RFC3339),
		"without time":   header,
		"invalid time":   header + " today",
		"not a header":   "00-xyz-01 " + time.Now().Format(time.RFC3339),
		"not sampled":    strings.TrimSuffix(header, "01") + "00 " + time.Now().Format(time.RFC3339),
		"empty":          "",
		"two separators": "  ",
	} {
		pod.Annotations[Annotation] = text
		if ctx, ok := Continue(t.Context(), pod); ok || trace.SpanContextFromContext(ctx).IsValid() {
			t.Errorf("%s: a trace was continued", name)
		}
	}
	// Clients cannot change the trace of an object.
	pod.Annotations[Annotation] = value
	for name, sent := range map[string]map[string]string{"removed": nil, "replaced": {Annotation: "x", "other": "y"}, "kept": {Annotation: value}} {
		got := &corev1.Pod{}
		got.Annotations = sent
		if Preserve(got, pod); got.Annotations[Annotation] != value {
			t.Errorf("%s: got %v", name, got.Annotations)
		}
	}
	added := &corev1.Pod{}
	added.Annotations = map[string]string{Annotation: value}
	if Preserve(added, &corev1.Pod{}); len(added.Annotations) != 0 {
		t.Errorf("a client has added %v", added.Annotations)
	}
	// A copy of an object that is written without a trace does not continue that of the original.
	pod.Annotations["other"] = "x"
	if Record(t.Context(), pod); len(pod.Annotations) != 1 {
		t.Errorf("got %v", pod.Annotations)
	}
}

// TestTransport checks that requests have the header of a sampled span only, and that the caller's request is unchanged.
func TestTransport(t *testing.T) {
	p, _ := start(t)
	defer p.Flush(slog.Default())
	var got http.Header
	transport := Transport{Next: roundTripper(func(req *http.Request) { got = req.Header })}
	ctx, span := p.Tracer("scope").Start(t.Context(), "client")
	for name, c := range map[string]struct {
		ctx  context.Context //nolint:containedctx // a test case
		want trace.SpanID
	}{
		"without a span": {t.Context(), trace.SpanID{}},
		"with a span":    {ctx, span.SpanContext().SpanID()},
	} {
		req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "http://x", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if id := FromHeader(got).SpanID(); id != c.want || len(req.Header) != 0 {
			t.Errorf("%s: got %s, header of the caller %v", name, id, req.Header)
		}
	}
	if FromHeader(http.Header{"Traceparent": {"nonsense"}}).IsValid() {
		t.Error("an invalid header was accepted")
	}
}

// roundTripper calls a function with each request and returns an empty response.
type roundTripper func(*http.Request)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	f(req)
	return httptest.NewRecorder().Result(), nil
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tracing.yaml")
	for name, c := range map[string]struct{ text, want string }{
		"v1":            {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: localhost:4317\nsamplingRatePerMillion: 100\n", ""},
		"v1beta1":       {"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n", ""},
		"unknown field": {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRate: 1\n", "samplingRate"},
		"invalid rate":  {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: 2000000\n", "less than or equal to one million"},
		"other kind":    {"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n", "expected TracingConfiguration"},
		"two documents": {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n---\nkind: X\n", "found 2"},
		"empty":         {"", "found 0"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := ReadFile(path)
		if c.want == "" && (err != nil || cfg == nil) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, %v", name, cfg, err)
		}
	}
	if cfg, err := ReadFile(""); cfg != nil || err != nil {
		t.Errorf("without a path: %v, %v", cfg, err)
	}
	if _, err := ReadFile(path + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
