package measure

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Queues measures work queues. Its methods are safe for several goroutines; on
// nil they measure nothing.
type Queues struct {
	depth           *prometheus.GaugeVec
	adds, retries   *prometheus.CounterVec
	latency, work   *prometheus.HistogramVec
	mu              sync.Mutex
	working         map[string][]*Worker // by queue, guarded by mu
	unfinished, old *prometheus.Desc
}

// queueBuckets are of the time that keys wait and are worked on.
func queueBuckets() []float64 { return prometheus.ExponentialBuckets(10e-9, 10, 10) }

// NewQueues makes Queues that knows of none.
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

// Describe as prometheus.Collector.
func (q *Queues) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{q.depth, q.adds, q.retries, q.latency, q.work} {
		c.Describe(ch)
	}
	ch <- q.unfinished
	ch <- q.old
}

// Collect as prometheus.Collector.
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

// Worker is one goroutine that works on the keys of a queue.
type Worker struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; zero between keys
}

// Begin says that it works on a key from now on. A nil Worker does nothing.
func (w *Worker) Begin() { w.set(time.Now()) }

// End says that it has done.
func (w *Worker) End() { w.set(time.Time{}) }

func (w *Worker) set(t time.Time) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = t
}

func (w *Worker) took() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}

// Worker adds a worker of the queue of that name; nil when nothing is measured.
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

// New makes a queue that is measured under name. Its owner calls the returned
// function after it has shut the queue down.
func (q *Queues) New(name string, limiter workqueue.TypedRateLimiter[string]) (workqueue.TypedRateLimitingInterface[string], func()) {
	if q == nil {
		// Without a name nothing is measured.
		return workqueue.NewTypedRateLimitingQueue(limiter), func() {}
	}
	still := &still{stopped: make(chan time.Time)}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
		Name: name, MetricsProvider: provider{q}, Clock: still,
	})
	return queue, sync.OnceFunc(func() { close(still.stopped) })
}

// still is a clock by which queues do not look at their workers twice a second:
// that is done when somebody asks.
type still struct {
	clock.RealClock
	stopped chan time.Time
}

// NewTicker as clock.WithTicker.
func (s *still) NewTicker(d time.Duration) clock.Ticker {
	if d < time.Second {
		return stillTicker{s.stopped}
	}
	return s.RealClock.NewTicker(d)
}

type stillTicker struct{ c <-chan time.Time }

// C as clock.Ticker: it is closed at the end.
func (t stillTicker) C() <-chan time.Time { return t.c }

// Stop as clock.Ticker.
func (stillTicker) Stop() {}

// provider implements workqueue.MetricsProvider.
type provider struct{ q *Queues }

type unset struct{}

// Set as workqueue.SettableGaugeMetric.
func (unset) Set(float64) {}

// The methods of workqueue.MetricsProvider.

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
