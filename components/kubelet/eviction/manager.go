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

	"hyperkube/internal/lifecycle"
)

// Timing, as upstream.
const (
	lookEvery   = 10 * time.Second
	cleanupWait = 30 * time.Second
	// calm is the least time between two looks, however often the kernel tells.
	calm = 500 * time.Millisecond
	// immediateGrace is how many seconds a pod has that must go at once.
	immediateGrace = 1
)

// Config is what a Manager needs. All fields must be filled but those that say
// otherwise.
type Config struct {
	NodeName   string
	Thresholds []Threshold
	// Transition is how long a pressure is told after it has passed.
	Transition time.Duration
	// MaxGrace bounds the seconds that a pod has to end at a soft threshold.
	MaxGrace int64
	// Measure tells what is left. Signals that cannot be measured are left out.
	Measure func(ctx context.Context) (map[Signal]Observation, error)
	// Pods returns the pods that have not ended.
	Pods func() []*v1.Pod
	// Critical pods are not ended.
	Critical func(*v1.Pod) bool
	// Usage measures all pods, for a choice among them.
	Usage func(ctx context.Context) (map[types.UID]*Candidate, error)
	// Storage measures the local storage of pods that have limits of it; nil
	// when those are not enforced.
	Storage func(ctx context.Context, pods []*v1.Pod) (map[types.UID]Storage, error)
	// Evict ends a pod within grace seconds. The channel is closed once nothing
	// of it runs and its storage is free. disrupted: it goes for others' sake, not
	// because of a limit of its own.
	Evict func(pod *v1.Pod, grace int64, message string, disrupted bool) <-chan struct{}
	// Disks tells which file systems there are; nil: one.
	Disks func(ctx context.Context) (Disks, error)
	// FreeDisk removes what nobody needs.
	FreeDisk func(ctx context.Context, what Room) error
	// Changed is called when a pressure has come or gone.
	Changed func()
	// Watch tells early of memory running short; may be nil.
	Watch *MemoryWatch
	// Events takes those of the node and of pods.
	Events record.EventRecorder
	Log    *slog.Logger
}

// Manager watches and acts. Its methods are safe for several goroutines.
type Manager struct {
	cfg     Config
	evicted *prometheus.CounterVec
	age     *prometheus.HistogramVec

	mu    sync.Mutex // guards state
	state State
}

// New makes a Manager.
func New(cfg Config) *Manager {
	return &Manager{
		cfg: cfg,
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions", Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
		}, []string{"eviction_signal"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Help: "[ALPHA] Time between measuring what is left and ending a pod for it, by eviction signal",
		}, []string{"eviction_signal"}),
	}
}

// Metrics counts evictions.
func (m *Manager) Metrics() []prometheus.Collector { return []prometheus.Collector{m.evicted, m.age} }

// Pressure tells whether the node has that condition.
func (m *Manager) Pressure(c v1.NodeConditionType) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Pressure(c)
}

// Refuse says why a pod may not come while the node is under pressure, empty if
// it may. Under memory pressure alone only those without any request are
// refused, and of them not those that tolerate its taint.
func (m *Manager) Refuse(pod *v1.Pod, qos v1.PodQOSClass) string {
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

// Run watches until ctx ends.
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
		ended, err := m.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			m.cfg.Log.Warn("looking for what runs short failed", "error", err)
		}
		next := lookEvery
		if len(ended) > 0 {
			m.await(ctx, ended)
			next = 0
		}
		if !lifecycle.Pause(ctx, calm) {
			return nil
		}
		timer.Reset(next)
	}
}

// await waits until the pods that were ended are gone, so that no more than
// needed go.
func (m *Manager) await(ctx context.Context, ended []<-chan struct{}) {
	limit := time.NewTimer(cleanupWait)
	defer limit.Stop()
	for _, done := range ended {
		select {
		case <-done:
		case <-limit.C:
			m.cfg.Log.Info("a pod that was ended takes its time")
			return
		case <-ctx.Done():
			return
		}
	}
}

// look measures once and acts; it returns what it ended.
func (m *Manager) look(ctx context.Context) ([]<-chan struct{}, error) {
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
		m.cfg.Log.Info("the node's pressure has changed", "conditions", after)
		m.cfg.Changed()
	}
	ended, err := m.limits(ctx)
	if err != nil {
		m.cfg.Log.Warn("measuring the storage of pods failed", "error", err)
	}
	if len(ended) > 0 || len(due) == 0 {
		return ended, nil
	}
	t := due[0]
	short := signals[t.Signal].resource
	m.cfg.Log.Warn("the node runs short", "signal", t.Signal, "available", now[t.Signal].Available, "threshold", t.Value.Of(now[t.Signal].Capacity))
	node := &v1.ObjectReference{Kind: "Node", Name: m.cfg.NodeName, UID: types.UID(m.cfg.NodeName)}
	m.cfg.Events.Eventf(node, v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", short)
	if room := disks.room(t.Signal); room != (Room{}) {
		if err := m.cfg.FreeDisk(ctx, room); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("making room failed", "error", err)
		}
		again, err := m.cfg.Measure(ctx)
		if err != nil {
			return nil, err
		}
		still := slices.ContainsFunc(m.cfg.Thresholds, func(t Threshold) bool { return crossed(t, again, true) && m.due(due, t) })
		if !still {
			return nil, nil
		}
		now, at = again, time.Now()
	}
	ended, err = m.one(ctx, t, now, disks)
	if len(ended) > 0 {
		for _, t := range due {
			m.age.WithLabelValues(string(t.Signal)).Observe(time.Since(at).Seconds())
		}
	}
	return ended, err
}

func (m *Manager) due(list []Threshold, t Threshold) bool {
	return slices.ContainsFunc(list, func(o Threshold) bool { return o.Signal == t.Signal })
}

// arm makes the kernel tell when the hardest threshold of memory is crossed.
func (m *Manager) arm(now map[Signal]Observation) {
	if m.cfg.Watch == nil {
		return
	}
	for _, t := range m.cfg.Thresholds {
		if o, ok := now[t.Signal]; ok && t.Signal == MemoryAvailable && t.Grace == 0 {
			if err := m.cfg.Watch.Arm(o.Available - t.Value.Of(o.Capacity)); err != nil {
				m.cfg.Log.Debug("asking the kernel to tell of memory running short failed", "error", err)
			}
		}
	}
}

// limits ends the pods that have more on the disk than they may.
func (m *Manager) limits(ctx context.Context) ([]<-chan struct{}, error) {
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

// one ends the pod that is to go first.
func (m *Manager) one(ctx context.Context, t Threshold, now map[Signal]Observation, disks Disks) ([]<-chan struct{}, error) {
	usage, err := m.cfg.Usage(ctx)
	if err != nil {
		return nil, fmt.Errorf("measuring pods: %w", err)
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
		return nil, errors.New("the node runs short and there is no pod to end")
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

func (m *Manager) evict(pod *v1.Pod, grace int64, message string, annotations map[string]string, disrupted bool) <-chan struct{} {
	m.cfg.Log.Warn("ending a pod", "pod", pod.Namespace+"/"+pod.Name, "message", message)
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	m.cfg.Events.AnnotatedEventf(ref, annotations, v1.EventTypeWarning, "Evicted", "%s", message)
	return m.cfg.Evict(pod, grace, message, disrupted)
}
