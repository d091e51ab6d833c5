package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"hyperkube/internal/base/lifecycle"
)

// measureInterval is the interval of eviction checks, and cleanupWait is how long they wait for the
// termination of an evicted pod, as in upstream.
const (
	measureInterval = 10 * time.Second
	cleanupWait     = 30 * time.Second
	// minInterval is the minimum time between two measurements, regardless of kernel notifications.
	minInterval = 500 * time.Millisecond
	// immediateGrace is the termination grace period, in seconds, when a hard threshold is met.
	immediateGrace = 1
)

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	NodeName   string
	Thresholds []Threshold
	// Transition is how long a pressure condition is kept after the pressure has ended.
	Transition time.Duration
	// MaxGrace is the maximum termination grace period, in seconds, when a soft threshold is met.
	MaxGrace int64
	// Measure returns the available amounts. Signals that cannot be measured are missing.
	Measure func(ctx context.Context) (map[Signal]Observation, error)
	// Pods returns the pods that have not terminated.
	Pods func() []*v1.Pod
	// Critical reports whether a pod must not be evicted.
	Critical func(*v1.Pod) bool
	// Usage returns the resource usage of all pods, to rank them.
	Usage func(ctx context.Context) (map[types.UID]*Candidate, error)
	// Storage returns the local storage usage of pods that have limits. It is nil if local storage
	// limits are not enforced.
	Storage func(ctx context.Context, pods []*v1.Pod) (map[types.UID]Storage, error)
	// Evict terminates a pod with a grace period in seconds. The channel is closed when nothing of
	// the pod runs and its storage is freed. disrupted is true if the node is under pressure, and
	// false if the pod exceeds its own limit.
	Evict func(pod *v1.Pod, grace int64, message string, disrupted bool) <-chan struct{}
	// Disks returns the file systems of the node. Nil means a single one.
	Disks func(ctx context.Context) (Disks, error)
	// FreeDisk removes unused files to reclaim disk space.
	FreeDisk func(ctx context.Context, what Reclaim) error
	// Changed is called when a pressure condition has changed.
	Changed func()
	// Watch notifies early when memory is low. It may be nil.
	Watch *MemoryWatch
	// Events records events of the node and of pods.
	Events record.EventRecorder
	Log    *slog.Logger
}

// Manager periodically measures the eviction signals, sets the node's pressure conditions, reclaims disk
// space, and evicts pods. Its methods are safe for concurrent use.
type Manager struct {
	cfg     Config
	evicted *prometheus.CounterVec
	age     *prometheus.HistogramVec

	mu    sync.Mutex // guards state
	state State
}

// New returns a Manager, which does nothing before Run.
func New(cfg Config) *Manager {
	return &Manager{
		cfg: cfg,
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions", Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
		}, []string{"eviction_signal"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Help: "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
		}, []string{"eviction_signal"}),
	}
}

// Metrics returns the collectors of the metrics of evictions.
func (m *Manager) Metrics() []prometheus.Collector { return []prometheus.Collector{m.evicted, m.age} }

// Pressure reports whether the node has the pressure condition c, such as MemoryPressure.
func (m *Manager) Pressure(c v1.NodeConditionType) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Pressure(c)
}

// Reject returns why a pod is not admitted while the node is under pressure, or "" if it is admitted. Critical
// pods are always admitted. Under memory pressure alone, only BestEffort pods that do not tolerate the memory
// pressure taint are rejected.
func (m *Manager) Reject(pod *v1.Pod, qos v1.PodQOSClass) string {
	m.mu.Lock()
	conditions := m.state.Conditions()
	m.mu.Unlock()
	if len(conditions) == 0 || m.cfg.Critical(pod) {
		return ""
	}
	if len(conditions) == 1 && conditions[0] == v1.NodeMemoryPressure {
		taint := v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) })
		if qos != v1.PodQOSBestEffort || tolerated {
			return ""
		}
	}
	return fmt.Sprintf("The node had condition: %v. ", conditions)
}

// Run checks the eviction signals periodically, and early when the kernel reports low memory, until ctx is
// done. A failed check is retried in the next interval. After an eviction it waits until the pod has
// terminated.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var early <-chan struct{}
	if m.cfg.Watch != nil {
		defer m.cfg.Watch.Close()
		early = m.cfg.Watch.C()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-early:
		}
		ended, err := m.synchronize(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			m.cfg.Log.Warn("checking eviction thresholds or selecting a pod to evict failed; no pod is evicted until a check succeeds, retrying in 10 seconds", "err", err)
		}
		next := measureInterval
		if len(ended) > 0 {
			m.waitForTermination(ctx, ended)
			next = 0
		}
		if !lifecycle.Pause(ctx, minInterval) {
			return nil
		}
		timer.Reset(next)
	}
}

// waitForTermination waits until all channels of ended are closed, at most cleanupWait. Each channel is that of an
// evicted pod and is closed when the pod has terminated. Without this wait, the next measurement would evict more
// pods than necessary.
func (m *Manager) waitForTermination(ctx context.Context, ended []<-chan struct{}) {
	limit := time.NewTimer(cleanupWait)
	defer limit.Stop()
	for _, done := range ended {
		select {
		case <-done:
		case <-limit.C:
			m.cfg.Log.Info("evicted pods did not terminate in time; their termination continues, and more pods are evicted if a threshold is still met", "timeout", cleanupWait)
			return
		case <-ctx.Done():
			return
		}
	}
}

// synchronize checks the signals once: it updates the pressure conditions and evicts the pods that exceed
// their storage limits. If there are none and a threshold is met, it reclaims disk space and, if the
// threshold is still met, evicts one pod. It returns a channel for each evicted pod that is closed when the
// pod has terminated.
func (m *Manager) synchronize(ctx context.Context) ([]<-chan struct{}, error) {
	now, err := m.cfg.Measure(ctx)
	if err != nil {
		return nil, err
	}
	m.arm(now)
	at := time.Now()
	var disks Disks
	if m.cfg.Disks != nil {
		if disks, err = m.cfg.Disks(ctx); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	before := m.state.Conditions()
	due := m.state.Step(m.cfg.Thresholds, now, at, m.cfg.Transition)
	after := m.state.Conditions()
	m.mu.Unlock()
	if !slices.Equal(before, after) {
		m.cfg.Log.Info("node pressure conditions changed; while the list is not empty, new pods may be rejected", "conditions", after)
		m.cfg.Changed()
	}
	ended, err := m.enforceLimits(ctx)
	if err != nil {
		m.cfg.Log.Warn("measuring local ephemeral storage of pods failed; pods above their storage limits are not evicted, retrying in 10 seconds", "err", err)
	}
	if len(ended) > 0 || len(due) == 0 {
		return ended, nil
	}
	t := due[0]
	short := signals[t.Signal].resource
	m.cfg.Log.Warn("eviction threshold met, reclaiming disk space if the signal is about a disk, then evicting a pod if the threshold is still met", "signal", t.Signal, "available", now[t.Signal].Available, "threshold", t.Value.Of(now[t.Signal].Capacity))
	node := &v1.ObjectReference{Kind: "Node", Name: m.cfg.NodeName, UID: types.UID(m.cfg.NodeName)}
	m.cfg.Events.Eventf(node, v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", short)
	if room := disks.reclaimable(t.Signal); room != (Reclaim{}) {
		if err := m.cfg.FreeDisk(ctx, room); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("reclaiming disk space failed; a pod is evicted if the threshold is still met", "signal", t.Signal, "err", err)
		}
		again, err := m.cfg.Measure(ctx)
		if err != nil {
			return nil, err
		}
		still := slices.ContainsFunc(m.cfg.Thresholds, func(t Threshold) bool { return thresholdMet(t, again, true) && m.due(due, t) })
		if !still {
			return nil, nil
		}
		now, at = again, time.Now()
	}
	ended, err = m.evictFirst(ctx, t, now, disks)
	if len(ended) > 0 {
		for _, t := range due {
			m.age.WithLabelValues(string(t.Signal)).Observe(time.Since(at).Seconds())
		}
	}
	return ended, err
}

// due reports whether list has a threshold of the signal of t. The caller passes the thresholds that require an
// eviction, to find out which signals are still below their thresholds after disk space was reclaimed.
func (m *Manager) due(list []Threshold, t Threshold) bool {
	return slices.ContainsFunc(list, func(o Threshold) bool { return o.Signal == t.Signal })
}

// arm requests a kernel notification for when the hard memory threshold is crossed. now are the measured
// signals. Without notifications the periodic checks suffice.
func (m *Manager) arm(now map[Signal]Observation) {
	if m.cfg.Watch == nil {
		return
	}
	for _, t := range m.cfg.Thresholds {
		if o, ok := now[t.Signal]; ok && t.Signal == MemoryAvailable && t.Grace == 0 {
			if err := m.cfg.Watch.Arm(o.Available - t.Value.Of(o.Capacity)); err != nil {
				m.cfg.Log.Debug("requesting a low memory notification from the kernel failed, low memory is noticed only by the check every 10 seconds", "err", err)
			}
		}
	}
}

// enforceLimits evicts all pods that exceed their local storage limits, except critical ones. It returns a
// channel for each of them that is closed when it has terminated. It does nothing if these limits are not
// enforced.
func (m *Manager) enforceLimits(ctx context.Context) ([]<-chan struct{}, error) {
	if m.cfg.Storage == nil {
		return nil, nil
	}
	var limited []*v1.Pod
	for _, pod := range m.cfg.Pods() {
		if hasLimits(pod) && !m.cfg.Critical(pod) {
			limited = append(limited, pod)
		}
	}
	if len(limited) == 0 {
		return nil, nil
	}
	used, err := m.cfg.Storage(ctx, limited)
	if err != nil {
		return nil, err
	}
	var out []<-chan struct{}
	for _, pod := range limited {
		if message, signal := overLimit(pod, used[pod.UID]); message != "" {
			out = append(out, m.evict(pod, immediateGrace, message, nil, false))
			m.evicted.WithLabelValues(signal).Inc()
		}
	}
	return out, nil
}

// evictFirst evicts the pod that is ranked first for the threshold t, which is met by the measured signals now.
// Critical pods are excluded. A pod that is evicted for a soft threshold gets its own grace period up to
// MaxGrace, otherwise a second. It returns a channel that is closed when the pod has terminated, or an error if
// no pod can be evicted.
func (m *Manager) evictFirst(ctx context.Context, t Threshold, now map[Signal]Observation, disks Disks) ([]<-chan struct{}, error) {
	usage, err := m.cfg.Usage(ctx)
	if err != nil {
		return nil, fmt.Errorf("measuring pod usage: %w", err)
	}
	var list []*Candidate
	for _, pod := range m.cfg.Pods() {
		if m.cfg.Critical(pod) {
			continue
		}
		c := usage[pod.UID]
		if c == nil {
			c = &Candidate{}
		}
		c.Pod = pod
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, errors.New("eviction threshold met, but there are no pods to evict")
	}
	rank(list, t.Signal, disks)
	grace := int64(immediateGrace)
	pod := list[0].Pod
	if t.Grace > 0 {
		grace = m.cfg.MaxGrace
		if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
			grace = min(grace, *s)
		}
	}
	message, annotations := explain(list[0], t, now)
	m.evicted.WithLabelValues(string(t.Signal)).Inc()
	return []<-chan struct{}{m.evict(pod, grace, message, annotations, true)}, nil
}

// evict terminates a pod with a grace period in seconds and emits an event with message and annotations. The
// channel is closed when the pod has terminated. disrupted is true if the node is under pressure, so that the pod
// gets the condition DisruptionTarget, and false if the pod exceeds its own storage limit.
func (m *Manager) evict(pod *v1.Pod, grace int64, message string, annotations map[string]string, disrupted bool) <-chan struct{} {
	m.cfg.Log.Warn("evicting pod, its controller may create a replacement", "pod", pod.Namespace+"/"+pod.Name, "message", message)
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	m.cfg.Events.AnnotatedEventf(ref, annotations, v1.EventTypeWarning, "Evicted", "%s", message)
	return m.cfg.Evict(pod, grace, message, disrupted)
}
