package measure

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

// Requests measures the requests of a component to the API server. It is safe
// for several goroutines.
type Requests struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	size     *prometheus.HistogramVec
	answer   *prometheus.HistogramVec

	// counters and observers keep what was looked up by its labels.
	counters  sync.Map // of prometheus.Counter by answered
	observers sync.Map // of observers by asked
}

type answered struct {
	host, method string
	code         int
}

type asked struct{ host, method string }

type observers struct{ duration, size, answer prometheus.Observer }

// NewRequests makes Requests that has seen none.
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

// Describe as prometheus.Collector; nil has nothing.
func (r *Requests) Describe(ch chan<- *prometheus.Desc) {
	if r == nil {
		return
	}
	r.total.Describe(ch)
	r.duration.Describe(ch)
	r.size.Describe(ch)
	r.answer.Describe(ch)
}

// Collect as prometheus.Collector.
func (r *Requests) Collect(ch chan<- prometheus.Metric) {
	if r == nil {
		return
	}
	r.total.Collect(ch)
	r.duration.Collect(ch)
	r.size.Collect(ch)
	r.answer.Collect(ch)
}

// Wrap returns a transport that measures what goes through next.
func (r *Requests) Wrap(next http.RoundTripper) http.RoundTripper { return &measured{r, next} }

type measured struct {
	r    *Requests
	next http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = (*measured)(nil)

// WrappedRoundTripper as utilnet.RoundTripperWrapper.
func (m *measured) WrappedRoundTripper() http.RoundTripper { return m.next }

// RoundTrip as http.RoundTripper. The time is that until the answer begins; of
// watches it says nothing, so it is not taken.
func (m *measured) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := m.next.RoundTrip(req)
	host, method, code := req.URL.Host, req.Method, 0
	if resp != nil {
		code = resp.StatusCode
	}
	m.r.counter(answered{host, method, code}).Inc()
	if strings.Contains(req.URL.RawQuery, "watch=") {
		return resp, err
	}
	o := m.r.observersOf(asked{host, method})
	o.duration.Observe(time.Since(began).Seconds())
	if req.ContentLength > 0 {
		o.size.Observe(float64(req.ContentLength))
	}
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
		resp.Body = &answerBody{ReadCloser: resp.Body, size: o.answer}
	}
	return resp, err
}

// answerBody tells how large it was once it has been read to its end.
type answerBody struct {
	io.ReadCloser
	n    int
	size prometheus.Observer // nil: it has been told
}

// Read as io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += n
	if err == io.EOF && b.size != nil {
		b.size.Observe(float64(b.n))
		b.size = nil
	}
	return n, err
}

func (r *Requests) counter(k answered) prometheus.Counter {
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

func (r *Requests) observersOf(k asked) observers {
	if o, ok := r.observers.Load(k); ok {
		return o.(observers)
	}
	o := observers{r.duration.WithLabelValues(k.method, k.host), r.size.WithLabelValues(k.method, k.host), r.answer.WithLabelValues(k.method, k.host)}
	r.observers.Store(k, o)
	return o
}
