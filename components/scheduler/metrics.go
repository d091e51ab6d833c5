package scheduler

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/scheduler/state"
	"hyperkube/internal/serving/componentmetrics"
)

// metrics are the scheduler's metrics, with upstream's names and labels. They are safe for concurrent use.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	attempts    *prometheus.CounterVec
	pending     [numSubQueues]prometheus.Gauge
	duration    *prometheus.HistogramVec
	sli         *prometheus.HistogramVec
	podAttempts prometheus.Histogram
	preemptions prometheus.Counter
	victims     prometheus.Histogram
	algorithm   prometheus.Histogram
	points      *prometheus.HistogramVec
	incoming    *prometheus.CounterVec
	binding     prometheus.Gauge
	// evaluations and took are by plugin. unschedulable is the number of pods that each plugin
	// makes unschedulable.
	evaluations           *prometheus.CounterVec
	took                  *prometheus.HistogramVec
	unschedulable         *prometheus.GaugeVec
	entities              *prometheus.CounterVec
	queued                [numSubQueues]prometheus.Gauge
	flushed               prometheus.Counter
	nodes, pods, unbounds prometheus.Gauge
}

// newMetrics creates the metrics and registers them, and the collectors in others, with r.
func newMetrics(r prometheus.Registerer, others ...prometheus.Collector) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
		}, []string{"profile", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_scheduling_attempt_duration_seconds",
			Help:    "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"profile", "result"}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_pod_scheduling_sli_duration_seconds",
			Help:    "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 20),
		}, []string{"attempts"}),
		podAttempts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_pod_scheduling_attempts",
			Help:    "[STABLE] Number of attempts to successfully schedule a pod.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 5),
		}),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total",
			Help: "[STABLE] Total preemption attempts in the cluster till now",
		}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_preemption_victims",
			Help:    "[STABLE] Number of selected preemption victims for preemption initiated by a single pod",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
	m.algorithm = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "[BETA] Scheduling algorithm latency in seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	})
	m.points = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_framework_extension_point_duration_seconds", Help: "[STABLE] Latency for running all plugins of a specific extension point.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 12),
	}, []string{"extension_point", "status", "profile"})
	m.incoming = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_queue_incoming_pods_total", Help: "[STABLE] Number of pods added to scheduling queues by event and queue type.",
	}, []string{"queue", "event"})
	goroutines := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_goroutines", Help: "[BETA] Number of running goroutines split by the work they do such as binding.",
	}, []string{"operation"})
	m.binding = goroutines.WithLabelValues("binding")
	pending := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_pending_pods",
		Help: "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulableEntities that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated; 'incomplete' means number of pods in incompletePodGroupPods; 'pending' means number of pods in pendingPodGroupPods.",
	}, []string{"queue"})
	for at, name := range queueNames {
		if name != "" {
			m.pending[at] = pending.WithLabelValues(name)
		}
	}
	m.evaluations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_plugin_evaluation_total",
		Help: "[BETA] How often plugins were asked about pods, by plugin and extension point (PreFilter, Filter, PreScore and Score).",
	}, []string{"plugin", "extension_point", "profile"})
	m.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_plugin_execution_duration_seconds", Help: "[BETA] How long a plugin took in an extension point; of some attempts.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 1.5, 20),
	}, []string{"plugin", "extension_point", "status"})
	m.unschedulable = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_unschedulable_pods",
		Help: "[BETA] The number of pods without a node, by the plugins because of which they have none. A pod counts for each of those plugins.",
	}, []string{"plugin", "profile"})
	m.entities = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_queue_incoming_entities_total", Help: "[ALPHA] Number of entities added to scheduling queues by event, queue and entity type, which is 'pod' for pods of no group.",
	}, []string{"queue", "event", "type"})
	queued := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_queued_entities", Help: "[ALPHA] Number of pending entities by queue and entity type.",
	}, []string{"queue", "type"})
	m.flushed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "scheduler_pod_scheduled_after_flush_total", Help: "[ALPHA] Number of pods that got a node when they were tried only because they had waited for long.",
	})
	size := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_cache_size", Help: "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
	}, []string{"type"})
	m.nodes, m.pods, m.unbounds = size.WithLabelValues("nodes"), size.WithLabelValues("pods"), size.WithLabelValues("assumed_pods")
	for at, name := range queueNames {
		if name != "" {
			m.queued[at] = queued.WithLabelValues(name, "pod")
		}
	}
	all := []prometheus.Collector{
		m.evaluations, m.took, m.unschedulable, m.entities, queued, m.flushed, size,
		m.attempts, m.duration, m.sli, m.podAttempts, m.preemptions, m.victims, m.algorithm, m.points, m.incoming, goroutines, pending, componentmetrics.Build(nil),
	}
	for _, c := range append(all, others...) {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// queueNames are the names of the subQueues of the scheduling queue in the metric of pending pods. Those without a
// name, such as that of pods in scheduling, are not counted.
var queueNames = [numSubQueues]string{activeQ: "active", backoffQ: "backoff", unschedulable: "unschedulable", gated: "gated"}

// queueAdd counts a pod that was added to the subQueue to. cause is upstream's name of the cluster event that caused
// this.
func (m *metrics) queueAdd(to subQueue, cause string) {
	m.incoming.WithLabelValues(queueNames[to], cause).Inc()
	m.entities.WithLabelValues(queueNames[to], cause, "pod").Inc()
}

// unschedulableAdd adds by, which may be negative, to the number of pods of a profile that a plugin makes
// unschedulable.
func (m *metrics) unschedulableAdd(plugin, profile string, by float64) {
	m.unschedulable.WithLabelValues(plugin, profile).Add(by)
}

// point records how long all plugins of an extension point took together since began.
func (m *metrics) point(profile, point, status string, began time.Time) {
	m.points.WithLabelValues(point, status, profile).Observe(time.Since(began).Seconds())
}

// cacheSize records the number of nodes and pods in the state and the number of assumed pods.
func (m *metrics) cacheSize(s *state.State, assumed int) {
	m.nodes.Set(float64(len(s.Nodes())))
	m.pods.Set(float64(s.PodCount()))
	m.unbounds.Set(float64(assumed))
}

// pendingPods records the number of pods in each part of the queue.
func (m *metrics) pendingPods(q *queue) {
	for at, gauge := range m.pending {
		if gauge != nil {
			gauge.Set(float64(q.counts[at]))
			m.queued[at].Set(float64(q.counts[at]))
		}
	}
}

// attempt records the result and duration of an attempt to schedule a pod. result is "scheduled", "unschedulable" or
// "error".
func (m *metrics) attempt(profile, result string, took time.Duration) {
	m.attempts.WithLabelValues(profile, result).Inc()
	m.duration.WithLabelValues(profile, result).Observe(took.Seconds())
}

// scheduled records the number of attempts that a bound pod needed, and the time since its first attempt.
func (m *metrics) scheduled(attempts int, took time.Duration) {
	label := strconv.Itoa(attempts)
	if attempts >= 15 {
		label = "15+"
	}
	m.podAttempts.Observe(float64(attempts))
	m.sli.WithLabelValues(label).Observe(took.Seconds())
}
