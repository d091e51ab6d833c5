package tracing

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"
)

// headerName is the key of the header traceparent in carriers of the propagator.
const headerName = "traceparent"

// Transport is a RoundTripper that adds the header traceparent to requests whose context has a sampled span, so that
// the server continues the trace.
type Transport struct{ Next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	span := trace.SpanContextFromContext(req.Context())
	if !span.IsSampled() {
		return t.Next.RoundTrip(req)
	}
	traced := req.Clone(req.Context())
	traced.Header.Set(headerName, header(span))
	return t.Next.RoundTrip(traced)
}

// WrappedRoundTripper returns the next RoundTripper, for client-go, which searches the chain for the one that can cancel
// requests.
func (t Transport) WrappedRoundTripper() http.RoundTripper { return t.Next }

// FromHeader returns the span of the header traceparent of a request. It is not valid if the request has no valid one.
func FromHeader(h http.Header) trace.SpanContext {
	text := h.Get(headerName)
	if text == "" {
		return trace.SpanContext{}
	}
	return parse(text)
}
