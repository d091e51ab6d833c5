package componentmetrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Queues creates work queues and collects their metrics (workqueue_…). Its methods are safe for
// concurrent use. A nil *Queues creates queues without metrics.
type Queues struct {
	depth           *prometheus.GaugeVec
	adds, retries   *prometheus.CounterVec
	latency, work   *prometheus.HistogramVec
	mu              sync.Mutex
	working         map[string][]*Worker // by queue name, guarded by mu
	unfinished, old *prometheus.Desc
}

// queueBuckets returns the histogram buckets, in seconds, of the durations in queue and of
// processing, as in upstream.
func queueBuckets() []float64 { return prometheus.ExponentialBuckets(10e-9, 10, 10) }

// NewQueues creates a Queues. Queues are added with New, their workers with Worker.
func NewQueues() *Queues {
	name := []string{"name"}
	return &Queues{
		depth:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth", Help: "[BETA] Current depth of workqueue"}, name),
		adds:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_adds_total", Help: "[BETA] Total number of adds handled by workqueue"}, name),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_retries_total", Help: "[BETA] Total number of retries handled by workqueue"}, name),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_queue_duration_seconds", Help: "[BETA] How long in seconds an item stays in workqueue before being requested.", Buckets: queueBuckets(),
		}, name),
		work: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_work_duration_seconds", Help: "[BETA] How long in seconds processing an item from workqueue takes.", Buckets: queueBuckets(),
		}, name),
		working: map[string][]*Worker{},
		unfinished: prometheus.NewDesc("workqueue_unfinished_work_seconds",
			"[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.", name, nil),
		old: prometheus.NewDesc("workqueue_longest_running_processor_seconds",
			"[BETA] How many seconds has the longest running processor for workqueue been running.", name, nil),
	}
}

// Describe implements prometheus.Collector. It describes the metrics of all work queues.
func (q *Queues) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{q.depth, q.adds, q.retries, q.latency, q.work} {
		c.Describe(ch)
	}
	ch <- q.unfinished
	ch <- q.old
}

// Collect implements prometheus.Collector. It computes how long the workers have been processing
// their keys, and sends the metrics of all work queues.
func (q *Queues) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{q.depth, q.adds, q.retries, q.latency, q.work} {
		c.Collect(ch)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, workers := range q.working {
		var sum, longest time.Duration
		for _, w := range workers {
			took := w.took()
			sum += took
			longest = max(longest, took)
		}
		ch <- prometheus.MustNewConstMetric(q.unfinished, prometheus.GaugeValue, sum.Seconds(), name)
		ch <- prometheus.MustNewConstMetric(q.old, prometheus.GaugeValue, longest.Seconds(), name)
	}
}

// Depth returns the number of keys that wait in all queues.
func (q *Queues) Depth() float64 {
	ch := make(chan prometheus.Metric)
	go func() {
		defer close(ch)
		q.depth.Collect(ch)
	}()
	total := 0.0
	for m := range ch {
		var out dto.Metric
		if m.Write(&out) == nil {
			total += out.GetGauge().GetValue()
		}
	}
	return total
}

// Worker is a goroutine that processes the keys of a queue. It records since when it has been processing its current
// key. Its methods are safe for concurrent use.
type Worker struct {
	mu    sync.Mutex
	since time.Time // start of the current key, zero between keys; guarded by mu
}

// Begin records that the worker starts to process a key now. A nil Worker does nothing.
func (w *Worker) Begin() { w.set(time.Now()) }

// End records that the worker has processed the key of the last Begin. A nil Worker does nothing.
func (w *Worker) End() { w.set(time.Time{}) }

// set records when the worker began the key that it processes; zero means that it processes none.
func (w *Worker) set(t time.Time) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = t
}

// took returns how long the worker has been processing its current key, or 0 if it processes none.
func (w *Worker) took() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}

// Worker returns a new Worker, whose time per key is part of the metrics of the queue with the name. Its Begin and
// End must be called for each key. It returns nil, which is a valid Worker, if q is nil.
func (q *Queues) Worker(name string) *Worker {
	if q == nil {
		return nil
	}
	w := &Worker{}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working[name] = append(q.working[name], w)
	return w
}

// New creates a rate-limited queue whose metrics have the label name. The caller must call the returned function
// after it has shut down the queue; it may be called more than once. If q is nil, the queue has no metrics, and the
// function does nothing.
func (q *Queues) New(name string, limiter workqueue.TypedRateLimiter[string]) (workqueue.TypedRateLimitingInterface[string], func()) {
	if q == nil {
		// A queue without a name has no metrics.
		return workqueue.NewTypedRateLimitingQueue(limiter), func() {}
	}
	still := &tickless{stopped: make(chan time.Time)}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
		Name: name, MetricsProvider: provider{q}, Clock: still,
	})
	return queue, sync.OnceFunc(func() { close(still.stopped) })
}

// tickless is a clock for work queues. It disables the tickers with which a queue updates metrics
// twice a second; Queues computes these metrics when they are collected.
type tickless struct {
	clock.RealClock
	stopped chan time.Time
}

// NewTicker implements clock.WithTicker. A ticker for less than a second never ticks; its channel is closed when the
// queue is shut down. Other tickers are real.
func (s *tickless) NewTicker(d time.Duration) clock.Ticker {
	if d < time.Second {
		return ticklessTicker{s.stopped}
	}
	return s.RealClock.NewTicker(d)
}

// ticklessTicker is a ticker that never ticks. Its channel is closed when the queue is shut down.
type ticklessTicker struct{ c <-chan time.Time }

// C implements clock.Ticker. The channel is closed when the queue is shut down.
func (t ticklessTicker) C() <-chan time.Time { return t.c }

// Stop implements clock.Ticker. It does nothing, because the ticker never ticks.
func (ticklessTicker) Stop() {}

// provider implements workqueue.MetricsProvider: it returns the metrics of q for a work queue.
type provider struct{ q *Queues }

// unset is a gauge that ignores its value. Queues computes the metric instead.
type unset struct{}

// Set implements workqueue.SettableGaugeMetric. It ignores the value, because Queues computes the
// metric itself.
func (unset) Set(float64) {}

// NewDepthMetric and the methods below return the metrics of the queue with the name.

func (p provider) NewDepthMetric(name string) workqueue.GaugeMetric {
	return p.q.depth.WithLabelValues(name)
}

func (p provider) NewAddsMetric(name string) workqueue.CounterMetric {
	return p.q.adds.WithLabelValues(name)
}

func (p provider) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return p.q.latency.WithLabelValues(name)
}

func (p provider) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return p.q.work.WithLabelValues(name)
}

func (p provider) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unset{}
}

func (p provider) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unset{}
}

func (p provider) NewRetriesMetric(name string) workqueue.CounterMetric {
	return p.q.retries.WithLabelValues(name)
}
