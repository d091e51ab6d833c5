// Package scheduler assigns nodes to pods. It has upstream's extension points, plugin names and
// configuration, and maintains an incrementally updated view of the cluster.
//
// One goroutine owns this view and the queue. It processes the informers' events and schedules one
// pod at a time; other goroutines write the bindings concurrently. Therefore, a scheduling cycle
// needs neither a snapshot nor locks.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
	"hyperkube/internal/serving/componentmetrics"
)

// Profile is a scheduler name and the plugins that schedule the pods with this name in spec.schedulerName.
type Profile struct {
	SchedulerName string
	Plugins       plugins.Set
}

// Config configures a Scheduler.
type Config struct {
	// Clients authenticate as system:kube-scheduler.
	Clients *client.Clients
	// Profiles are the profiles; nil means default-scheduler with the default plugins.
	Profiles []Profile
	// Extenders are called over HTTP, in order.
	Extenders []configv1.Extender
	// Metrics registers the scheduler's metrics. If nil, Scheduler.Metrics returns them.
	Metrics prometheus.Registerer
	// InitialBackoff is the back-off of a pod after its first unsuccessful attempt. It doubles
	// after each attempt up to MaxBackoff. Zero means one second and ten seconds.
	InitialBackoff, MaxBackoff time.Duration
	// Binders is the number of concurrent bindings; zero means sixteen.
	Binders int
	// Tracing configures the export of traces. Nil disables it.
	Tracing *tracingapi.TracingConfiguration
	Log     *slog.Logger
}

// Scheduler assigns pods to nodes. Create it with New, start the informers, and call Run.
type Scheduler struct {
	cfg      Config
	profiles map[string]*Profile
	listers  *listers
	volumes  *volumes
	inbox    *inbox
	ready    chan struct{}
	metrics  *metrics
	leaders  *componentmetrics.Leaders
	// registry contains the metrics; nil if they are registered elsewhere.
	registry *prometheus.Registry
	extended []*extender
	traces   *tracing.Provider

	// The fields below belong to the goroutine of Run.
	state   *state.State
	queue   *queue
	devices *devices
	// assumed are the pods that count as running on a node in state although they are not bound in
	// the cache: their binding is being written, or was written and is not in the cache yet.
	assumed map[types.UID]bool
	// buffers contains the buffers that attempts reuse.
	buffers framework.Buffers
	// pluginMetrics are the plugin metrics of each profile.
	pluginMetrics map[*Profile]*pluginMetrics
}

// New validates cfg and requests the informers from cfg.Clients. The caller must start the informer factory afterwards
// and then call Run.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Clients == nil {
		return nil, errors.New("scheduler: no clients")
	}
	if cfg.Binders == 0 {
		cfg.Binders = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []Profile{{SchedulerName: corev1.DefaultSchedulerName, Plugins: plugins.Default()}}
	}
	s := &Scheduler{
		cfg: cfg, profiles: map[string]*Profile{}, inbox: newInbox(), ready: make(chan struct{}),
		state: state.New(), queue: newQueue(), devices: newDevices(), assumed: map[types.UID]bool{}, pluginMetrics: map[*Profile]*pluginMetrics{},
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		if s.profiles[p.SchedulerName] != nil {
			return nil, fmt.Errorf("scheduler: duplicate profile %q", p.SchedulerName)
		}
		s.profiles[p.SchedulerName] = p
	}
	if cfg.InitialBackoff != 0 {
		s.queue.initial = cfg.InitialBackoff
	}
	if cfg.MaxBackoff != 0 {
		s.queue.max = cfg.MaxBackoff
	}
	if s.queue.initial < 0 || s.queue.max < s.queue.initial {
		return nil, fmt.Errorf("scheduler: invalid back-off: initial %s, maximum %s", s.queue.initial, s.queue.max)
	}
	for i := range cfg.Extenders {
		e, err := newExtender(&cfg.Extenders[i])
		if err != nil {
			return nil, fmt.Errorf("scheduler: %w", err)
		}
		s.extended = append(s.extended, e)
	}
	// Call ignorable extenders last, after the others have reduced the nodes.
	slices.SortStableFunc(s.extended, func(a, b *extender) int {
		switch {
		case a.cfg.Ignorable == b.cfg.Ignorable:
			return 0
		case b.cfg.Ignorable:
			return -1
		}
		return 1
	})
	var err error
	if s.traces, err = tracing.New(cfg.Tracing, component, ""); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	s.leaders = componentmetrics.NewLeaders()
	if cfg.Metrics == nil {
		s.registry = prometheus.NewRegistry()
		cfg.Metrics = s.registry
	}
	if s.metrics, err = newMetrics(cfg.Metrics, s.leaders, cfg.Clients.Requests); err != nil {
		return nil, fmt.Errorf("scheduler: registering metrics: %w", err)
	}
	s.queue.onAdd, s.queue.onUnschedulable = s.metrics.queueAdd, s.metrics.unschedulableAdd
	for _, p := range s.profiles {
		s.pluginMetrics[p] = newPluginMetrics(s.metrics, p.SchedulerName, &p.Plugins)
	}
	if s.listers, err = newListers(cfg.Clients.Informers, s.inbox); err != nil {
		return nil, fmt.Errorf("scheduler: creating informers: %w", err)
	}
	if s.volumes, err = newVolumes(cfg.Clients.Informers, s.inbox); err != nil {
		return nil, fmt.Errorf("scheduler: creating informers: %w", err)
	}
	s.listers.synced = append(s.listers.synced, s.volumes.synced...)
	return s, nil
}

// Ready returns a channel that is closed when Run has synced its informers and schedules pods.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Synced reports whether all informers that the scheduler always needs are synced, for the readiness check.
func (s *Scheduler) Synced() bool {
	for _, synced := range s.listers.synced {
		if !cache.IsDone(synced) {
			return false
		}
	}
	return true
}

// Run schedules pods until ctx is done. It then waits for bindings in progress and returns nil. Call it once.
func (s *Scheduler) Run(ctx context.Context) error {
	defer s.traces.Flush(s.cfg.Log)
	if !cache.WaitFor(ctx, "", s.listers.synced...) {
		return nil
	}
	broadcaster := events.NewBroadcaster(newSerialEventSink(&events.EventSinkImpl{Interface: s.cfg.Clients.Kube.EventsV1()}))
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("scheduler: starting event recorder: %w", err)
	}
	defer broadcaster.Shutdown()
	recorders := map[string]events.EventRecorder{}
	for name := range s.profiles {
		recorders[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	}
	w := s.startWriters(ctx, recorders)
	defer w.stop()
	close(s.ready)
	for {
		s.processInbox()
		if s.devices.requested && !s.devices.started {
			if err := s.devices.start(ctx, s.cfg.Clients, s.inbox); err != nil {
				return fmt.Errorf("scheduler: %w", err)
			}
		}
		it := s.queue.pop(time.Now())
		s.metrics.pendingPods(s.queue)
		s.metrics.cacheSize(s.state, len(s.assumed))
		if it == nil {
			if !s.wait(ctx) {
				return nil
			}
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		d := s.attempt(ctx, it)
		if !w.write(ctx, d) {
			return nil
		}
	}
}

// wait blocks until the inbox contains a message or a queued pod is ready for another attempt. It returns false if ctx
// is done.
func (s *Scheduler) wait(ctx context.Context) bool {
	var expiry <-chan time.Time
	if next := s.queue.nextReady(); !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		expiry = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-s.inbox.signal:
	case <-expiry:
	}
	return true
}

// attempt tries to find a node for a pod from the queue. If it finds one, the state counts the pod as running there
// before it is bound (it is assumed). Otherwise attempt queues the pod again. It returns the decision, which a writer
// writes to the API server.
func (s *Scheduler) attempt(ctx context.Context, it *item) *decision {
	start := time.Now()
	profile := s.profiles[it.pod.Spec.SchedulerName]
	d := &decision{
		item: it, pod: it.pod, profile: profile.SchedulerName,
		start: start, first: it.first, attempts: it.attempts, flushed: it.flushed,
	}
	s.pluginMetrics[profile].begin()
	info := state.NewPod(it.pod)
	cycle := s.newCycle(info, profile)
	node, failed := s.find(ctx, cycle, profile)
	s.metrics.algorithm.Observe(time.Since(start).Seconds())
	if node == nil {
		s.fail(ctx, d, info, failed, profile)
		return d
	}
	r, err := reserve(cycle, profile.Plugins.Filter, node)
	if err != nil {
		s.fail(ctx, d, info, &fitError{err: err}, profile)
		return d
	}
	d.reservation = r
	s.volumes.assume(r)
	s.devices.assume(r)
	d.node = node.Name
	s.state.ClearNomination(it.pod.UID)
	s.state.SetPod(info, node.Name)
	s.assumed[it.pod.UID] = true
	return d
}

// newCycle returns the framework.Cycle in which the plugins of a profile evaluate a pod. It has no side effects.
func (s *Scheduler) newCycle(pod *state.Pod, profile *Profile) *framework.Cycle {
	c := &framework.Cycle{
		Pod: pod, State: s.state, Namespaces: s.listers.namespaceLabels, SpreadSelector: s.listers.spreadSelector,
		Volumes: s.volumes, Buffers: &s.buffers,
	}
	if profile.Plugins.Devices != nil && framework.RequestsDevices(pod.Object) {
		c.Devices = s.devices
	}
	return c
}

// find returns the best node for the pod that is being scheduled according to the plugins of a profile and the
// extenders, or why no node fits.
func (s *Scheduler) find(ctx context.Context, cycle *framework.Cycle, profile *Profile) (*state.Node, *fitError) {
	if len(s.extended) == 0 {
		return findNode(cycle, &profile.Plugins, s.pluginMetrics[profile])
	}
	more := func(nodes []*state.Node, failed *fitError) ([]*state.Node, error) {
		return s.extendFilter(ctx, cycle.Pod.Object, nodes, failed)
	}
	nodes, failed := candidates(cycle, &profile.Plugins, more, s.pluginMetrics[profile])
	if failed != nil {
		return nil, failed
	}
	return best(cycle, &profile.Plugins, nodes, s.extendScore(ctx, cycle.Pod.Object, nodes), s.pluginMetrics[profile]), nil
}

// fail handles an attempt that found no node. It adds the consequences to the decision d: the message, a claim to
// deallocate, or a nomination and preemption victims. It queues the pod again: after its back-off if an error occurred,
// and else until an event may make it schedulable. info is the pod of the cycle.
func (s *Scheduler) fail(ctx context.Context, d *decision, info *state.Pod, failed *fitError, profile *Profile) {
	now := time.Now()
	pod := d.pod
	d.failed = failed.err != nil
	a := s.pluginMetrics[profile]
	defer a.nodes(failed.search)
	s.queue.setPlugins(d.item, failed.plugins()...)
	if failed.err != nil {
		// No event shows that the error is resolved.
		d.reason = failed.Error()
		s.queue.addBackoff(d.item, now)
		return
	}
	if p := profile.Plugins.Devices; p != nil && failed.search != nil {
		if d.deallocated = p.Freeable(failed.search.c); d.deallocated != nil {
			d.reason = failed.Error()
			s.queue.addUnschedulable(d.item, failed.events|framework.ClaimChanged, now)
			return
		}
	}
	if failed.search != nil && failed.search.refusedEarly && failed.nodes > 0 {
		// Here upstream's preemption fails because the PreFilter state of DynamicResources is
		// missing, and the message contains this error. Use the same message.
		failed.preemption = "not found"
	} else if p := profile.Plugins.Preemption; p != nil && failed.search != nil && failed.nodes > 0 {
		s.metrics.preemptions.Inc()
		eligible := preemptionForbidden(failed) == ""
		began := a.startTime()
		v, err := preemptAmong(failed, p, s.budgets(), now, func(found []*victims) ([]*victims, error) {
			return s.extendPreempt(ctx, pod, found, now)
		})
		status := "Unschedulable"
		switch {
		case v != nil:
			status = "Success"
		case err != nil:
			// Keep the nomination, because it may still be useful.
			eligible = false
			if !errors.Is(err, errNoCandidate) {
				status = "Error"
			}
		}
		a.observe(p.Name(), "PostFilter", status, began)
		a.observePoint("PostFilter", status, now)
		switch {
		case v != nil:
			failed.events |= framework.PodRemoved
			d.nominate(v.node.Name)
			// Less important pods that are nominated to the node no longer fit there.
			for _, n := range slices.Clone(v.node.Nominated) {
				if n.Priority < info.Priority {
					d.nominationCleared = append(d.nominationCleared, n.Object)
					s.state.ClearNomination(n.Object.UID)
				}
			}
			s.state.Nominate(info, v.node.Name)
			for _, p := range v.pods {
				d.victims = append(d.victims, p.Object)
			}
			d.item.evicting = true
			s.metrics.victims.Observe(float64(len(v.pods)))
		case eligible && (pod.Status.NominatedNodeName != "" || s.state.NominatedNode(pod.UID) != nil):
			s.state.ClearNomination(pod.UID)
			d.nominate("")
		}
	}
	d.reason = failed.Error()
	s.queue.addUnschedulable(d.item, failed.events, now)
}

// budgets returns all PodDisruptionBudgets that select pods. Preemption avoids violating them if possible.
func (s *Scheduler) budgets() []*budget {
	all, _ := s.listers.budgets.List(labels.Everything()) // reads from the cache and does not fail
	var out []*budget
	for _, object := range all {
		if b := newBudget(object); b != nil {
			out = append(out, b)
		}
	}
	return out
}
