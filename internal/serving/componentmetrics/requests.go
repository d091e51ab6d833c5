package componentmetrics

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Requests collects the metrics of a component's requests to the API server (rest_client_…). It is
// safe for concurrent use.
type Requests struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	size     *prometheus.HistogramVec
	answer   *prometheus.HistogramVec

	// counters and observers cache metrics by their labels.
	counters  sync.Map // responseLabels to prometheus.Counter
	observers sync.Map // requestLabels to observers
}

// responseLabels contains the labels of a counter of responses. The code is 0 if there was no
// response.
type responseLabels struct {
	host, method string
	code         int
}

// requestLabels contains the labels of the histograms of requests.
type requestLabels struct{ host, method string }

// observers contains the histograms for requests with the same labels: duration, size of the
// request body and size of the response body (answer).
type observers struct{ duration, size, answer prometheus.Observer }

// NewRequests creates a Requests without requests. Requests.Wrap adds it to the transport of a
// client.
func NewRequests() *Requests {
	sizes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	return &Requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
		}, []string{"verb", "host"}),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_size_bytes", Help: "[ALPHA] Request size in bytes. Broken down by verb and host.",
			Buckets: sizes,
		}, []string{"verb", "host"}),
		answer: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_response_size_bytes", Help: "[ALPHA] Response size in bytes. Broken down by verb and host.", Buckets: sizes,
		}, []string{"verb", "host"}),
	}
}

// Describe implements prometheus.Collector. It does nothing if r is nil.
func (r *Requests) Describe(ch chan<- *prometheus.Desc) {
	if r == nil {
		return
	}
	r.total.Describe(ch)
	r.duration.Describe(ch)
	r.size.Describe(ch)
	r.answer.Describe(ch)
}

// Collect implements prometheus.Collector. It does nothing if r is nil.
func (r *Requests) Collect(ch chan<- prometheus.Metric) {
	if r == nil {
		return
	}
	r.total.Collect(ch)
	r.duration.Collect(ch)
	r.size.Collect(ch)
	r.answer.Collect(ch)
}

// Wrap returns a transport that sends requests with next and records them in the metrics of r. r must not be nil.
func (r *Requests) Wrap(next http.RoundTripper) http.RoundTripper { return &measured{r, next} }

// measured is the transport that Wrap returns.
type measured struct {
	r    *Requests
	next http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = (*measured)(nil)

// WrappedRoundTripper returns the next transport. Kubernetes libraries call it to find the
// transport that dials.
func (m *measured) WrappedRoundTripper() http.RoundTripper { return m.next }

// RoundTrip implements http.RoundTripper. It counts each request, and measures the time until the response header is
// received and the sizes of request and response. Times and sizes of watches are not recorded, because they are
// meaningless, nor the response size of upgraded connections.
func (m *measured) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := m.next.RoundTrip(req)
	host, method, code := req.URL.Host, req.Method, 0
	if resp != nil {
		code = resp.StatusCode
	}
	m.r.counter(responseLabels{host, method, code}).Inc()
	if strings.Contains(req.URL.RawQuery, "watch=") {
		return resp, err
	}
	o := m.r.observersOf(requestLabels{host, method})
	o.duration.Observe(time.Since(began).Seconds())
	if req.ContentLength > 0 {
		o.size.Observe(float64(req.ContentLength))
	}
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
		resp.Body = &responseBody{ReadCloser: resp.Body, size: o.answer}
	}
	return resp, err
}

// responseBody is a response body that records its size, in bytes, when it was read to its end. A body that is closed
// before is not recorded.
type responseBody struct {
	io.ReadCloser
	n    int
	size prometheus.Observer // nil after the size was recorded
}

// Read implements io.Reader. It records the size once, when it returns io.EOF.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += n
	if err == io.EOF && b.size != nil {
		b.size.Observe(float64(b.n))
		b.size = nil
	}
	return n, err
}

// counter returns the counter of the responses with the method, host and status code in k, and creates it on first
// use. The code 0, for requests without a response, becomes the label "<error>".
func (r *Requests) counter(k responseLabels) prometheus.Counter {
	if c, ok := r.counters.Load(k); ok {
		return c.(prometheus.Counter)
	}
	code := "<error>"
	if k.code != 0 {
		code = strconv.Itoa(k.code)
	}
	c := r.total.WithLabelValues(code, k.method, k.host)
	r.counters.Store(k, c)
	return c
}

// observersOf returns the histograms of requests with the labels k, and creates them on first use.
func (r *Requests) observersOf(k requestLabels) observers {
	if o, ok := r.observers.Load(k); ok {
		return o.(observers)
	}
	o := observers{r.duration.WithLabelValues(k.method, k.host), r.size.WithLabelValues(k.method, k.host), r.answer.WithLabelValues(k.method, k.host)}
	r.observers.Store(k, o)
	return o
}
