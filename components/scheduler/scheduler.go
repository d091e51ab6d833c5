// Package scheduler finds nodes for pods: upstream's extension points, plugin
// names and configuration over an own, incremental view of the cluster.
//
// One goroutine owns that view and the queue, takes in what informers tell and
// places one pod after the other; bindings are written by others meanwhile. So
// nothing is copied and nothing is locked for a cycle.
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
	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
	"hyperkube/internal/measure"
)

// Profile is a scheduler by name and what it runs.
type Profile struct {
	SchedulerName string
	Plugins       plugins.Set
}

// Config of a Scheduler.
type Config struct {
	// Clients of system:kube-scheduler.
	Clients *client.Clients
	// Profiles; nil is one, default-scheduler, with the default plugins.
	Profiles []Profile
	// Extenders are asked over HTTP, in order.
	Extenders []configv1.Extender
	// Metrics is where the scheduler's metrics are registered; nil: in a registry
	// of its own, which Scheduler.Metrics shows.
	Metrics prometheus.Registerer
	// InitialBackoff is how long a pod that could not be placed waits at least
	// before it is tried again, doubled each time up to MaxBackoff; zero
	// means one second and ten.
	InitialBackoff, MaxBackoff time.Duration
	// Binders is how many bindings are written at the same time; zero means
	// sixteen.
	Binders int
	Log     *slog.Logger
}

// Scheduler places pods.
type Scheduler struct {
	cfg      Config
	profiles map[string]*Profile
	informed *informed
	volumes  *volumes
	inbox    *inbox
	ready    chan struct{}
	metrics  *metrics
	leaders  *measure.Leaders
	// registry has the metrics; nil when they are registered elsewhere.
	registry *prometheus.Registry
	extended []*extender
	// reserving are pods whose reservations are being written.
	reserving reserving

	// Owned by the goroutine of Run.
	state   *state.State
	queue   *queue
	devices *devices
	// assumed are the pods whose binding is being written, or was and has
	// not come back by the watch.
	assumed map[types.UID]bool
	// room is what attempts work in.
	room framework.Room
	// asked counts what the plugins of each profile are asked.
	asked map[*Profile]*asked
}

// New validates cfg and asks its informers for what is needed; they are started
// by who composes the process.
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
		state: state.New(), queue: newQueue(), devices: newDevices(), assumed: map[types.UID]bool{}, asked: map[*Profile]*asked{},
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		if s.profiles[p.SchedulerName] != nil {
			return nil, fmt.Errorf("scheduler: two profiles are named %q", p.SchedulerName)
		}
		s.profiles[p.SchedulerName] = p
	}
	if cfg.InitialBackoff != 0 {
		s.queue.initial = cfg.InitialBackoff
	}
	if cfg.MaxBackoff != 0 {
		s.queue.most = cfg.MaxBackoff
	}
	if s.queue.initial < 0 || s.queue.most < s.queue.initial {
		return nil, fmt.Errorf("scheduler: a backoff from %s to %s", s.queue.initial, s.queue.most)
	}
	for i := range cfg.Extenders {
		e, err := newExtender(&cfg.Extenders[i])
		if err != nil {
			return nil, fmt.Errorf("scheduler: %w", err)
		}
		s.extended = append(s.extended, e)
	}
	// Those that may fail come last, and see what is left by those that count.
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
	s.leaders = measure.NewLeaders()
	if cfg.Metrics == nil {
		s.registry = prometheus.NewRegistry()
		cfg.Metrics = s.registry
	}
	if s.metrics, err = newMetrics(cfg.Metrics, s.leaders, cfg.Clients.Requests); err != nil {
		return nil, fmt.Errorf("scheduler: registering metrics: %w", err)
	}
	s.queue.came, s.queue.blamed = s.metrics.came, s.metrics.blamed
	for _, p := range s.profiles {
		s.asked[p] = newAsked(s.metrics, p.SchedulerName, &p.Plugins)
	}
	if s.informed, err = newInformed(cfg.Clients.Informers, s.inbox); err != nil {
		return nil, fmt.Errorf("scheduler: preparing informers: %w", err)
	}
	if s.volumes, err = newVolumes(cfg.Clients.Informers, s.inbox); err != nil {
		return nil, fmt.Errorf("scheduler: preparing informers: %w", err)
	}
	s.informed.synced = append(s.informed.synced, s.volumes.synced...)
	return s, nil
}

// Ready is closed once all nodes and pods are known.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Synced tells whether all nodes and pods are known.
func (s *Scheduler) Synced() bool {
	for _, synced := range s.informed.synced {
		if !cache.IsDone(synced) {
			return false
		}
	}
	return true
}

// Run places pods until ctx ends; bindings under way are finished first.
func (s *Scheduler) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", s.informed.synced...) {
		return nil
	}
	broadcaster := events.NewBroadcaster(newUnhurried(&events.EventSinkImpl{Interface: s.cfg.Clients.Kube.EventsV1()}))
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("scheduler: starting events: %w", err)
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
		s.takeIn()
		if s.devices.wanted && !s.devices.started {
			if err := s.devices.start(ctx, s.cfg.Clients, s.inbox); err != nil {
				return fmt.Errorf("scheduler: %w", err)
			}
		}
		it := s.queue.pop(time.Now())
		s.metrics.waiting(s.queue)
		s.metrics.cached(s.state, len(s.assumed))
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

// wait blocks until something is in the inbox or a backoff ends. It returns
// false when ctx has ended.
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

// attempt tries to find a node for one pod, and returns what is to be written.
func (s *Scheduler) attempt(ctx context.Context, it *item) *decision {
	start := time.Now()
	profile := s.profiles[it.pod.Spec.SchedulerName]
	d := &decision{
		item: it, pod: it.pod, profile: profile.SchedulerName,
		start: start, first: it.first, attempts: it.attempts, flushed: it.flushed,
	}
	s.asked[profile].begin()
	info := state.NewPod(it.pod)
	cycle := &framework.Cycle{Pod: info, State: s.state, Namespaces: s.informed.namespaceLabels, SpreadSelector: s.informed.spreadSelector, Volumes: s.volumes, Room: &s.room}
	if profile.Plugins.Devices != nil && framework.AsksDevices(it.pod) {
		cycle.Devices = s.devices
	}
	node, failed := s.find(ctx, cycle, profile)
	s.metrics.algorithm.Observe(time.Since(start).Seconds())
	if node == nil {
		s.fail(ctx, d, info, failed, profile)
		return d
	}
	r, err := reserve(cycle, profile.Plugins.Filter, node)
	if err != nil {
		s.fail(ctx, d, info, &unfit{err: err}, profile)
		return d
	}
	d.reservation = r
	s.volumes.assume(r)
	s.devices.assume(r)
	d.node = node.Name
	s.state.Withdraw(it.pod.UID)
	s.state.SetPod(info, node.Name)
	s.assumed[it.pod.UID] = true
	return d
}

// find is findNode with the extenders asked.
func (s *Scheduler) find(ctx context.Context, cycle *framework.Cycle, profile *Profile) (*state.Node, *unfit) {
	if len(s.extended) == 0 {
		return findNode(cycle, &profile.Plugins, s.asked[profile])
	}
	more := func(nodes []*state.Node, failed *unfit) ([]*state.Node, error) {
		return s.extendFilter(ctx, cycle.Pod.Object, nodes, failed)
	}
	nodes, failed := candidates(cycle, &profile.Plugins, more, s.asked[profile])
	if failed != nil {
		return nil, failed
	}
	return best(cycle, &profile.Plugins, nodes, s.extendScore(ctx, cycle.Pod.Object, nodes), s.asked[profile]), nil
}

// fail decides what becomes of a pod that fits nowhere: it waits, and others may
// be evicted for it.
func (s *Scheduler) fail(ctx context.Context, d *decision, info *state.Pod, failed *unfit, profile *Profile) {
	now := time.Now()
	pod := d.pod
	d.failed = failed.err != nil
	a := s.asked[profile]
	defer a.nodes(failed.search)
	s.queue.blame(d.item, failed.plugins()...)
	if failed.err != nil {
		// No event tells when what went wrong is right again.
		d.unfit = failed.Error()
		s.queue.again(d.item, now)
		return
	}
	if p := profile.Plugins.Devices; p != nil && failed.search != nil {
		if d.freed = p.Freeable(failed.search.c); d.freed != nil {
			d.unfit = failed.Error()
			s.queue.turnDown(d.item, failed.wake|framework.ClaimChanged, now)
			return
		}
	}
	if failed.search != nil && failed.search.early && failed.nodes > 0 {
		// Upstream's plugin of devices misses here what it would have noted of
		// the pod, which ends the search for victims and is told to all.
		failed.preemption = "not found"
	} else if p := profile.Plugins.Preemption; p != nil && failed.search != nil && failed.nodes > 0 {
		s.metrics.preemptions.Inc()
		eligible := mayNotPreempt(failed) == ""
		began := a.clock()
		v, err := preemptAmong(failed, p, s.budgets(), now, func(found []*victims) ([]*victims, error) {
			return s.extendPreempt(ctx, pod, found, now)
		})
		status := "Unschedulable"
		switch {
		case v != nil:
			status = "Success"
		case err != nil:
			// What was nominated stays: nothing says that it does not help any more.
			eligible = false
			if !errors.Is(err, errNoCandidate) {
				status = "Error"
			}
		}
		a.took(p.Name(), "PostFilter", status, began)
		a.point("PostFilter", status, now)
		switch {
		case v != nil:
			failed.wake |= framework.PodRemoved
			d.nominate(v.node.Name)
			// Those less important that room was made for there do not fit
			// any more.
			for _, n := range slices.Clone(v.node.Nominated) {
				if n.Priority < info.Priority {
					d.denominated = append(d.denominated, n.Object)
					s.state.Withdraw(n.Object.UID)
				}
			}
			s.state.Nominate(info, v.node.Name)
			for _, p := range v.pods {
				d.victims = append(d.victims, p.Object)
			}
			d.item.held = true
			s.metrics.victims.Observe(float64(len(v.pods)))
		case eligible && (pod.Status.NominatedNodeName != "" || s.state.NominatedNode(pod.UID) != nil):
			s.state.Withdraw(pod.UID)
			d.nominate("")
		}
	}
	d.unfit = failed.Error()
	s.queue.turnDown(d.item, failed.wake, now)
}

// budgets are those that evictions respect where they can.
func (s *Scheduler) budgets() []*budget {
	all, _ := s.informed.budgets.List(labels.Everything()) // from memory, which does not fail
	var out []*budget
	for _, object := range all {
		if b := newBudget(object); b != nil {
			out = append(out, b)
		}
	}
	return out
}
