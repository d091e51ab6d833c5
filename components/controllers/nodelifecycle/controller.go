// Package nodelifecycle watches over Nodes: it declares those unknown that
// fall silent, puts taints on them by their conditions, and marks their pods as
// not ready. The eviction by NoExecute taints is the taint eviction
// controller's.
//
// https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
//
// There is no ticker: each Node is looked at when it or its Lease changes and
// when its silence would become too long.
package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/podfacts"
)

// Config tunes the controller. Zero values are upstream's defaults.
type Config struct {
	// GracePeriod is how long a Node may be silent; 50 s.
	GracePeriod time.Duration
	// StartupGracePeriod is how long one may be silent that never reported;
	// 60 s.
	StartupGracePeriod time.Duration
	// EvictionRate is how many Nodes of a healthy zone get a NoExecute taint
	// a second; 0.1.
	EvictionRate float64
	// SecondaryEvictionRate is that of an unhealthy zone of more than
	// LargeCluster Nodes; 0.01. In a smaller one it is zero.
	SecondaryEvictionRate float64
	// LargeCluster is the largest size of a small one; 50.
	LargeCluster int
	// UnhealthyZone is from which part of Nodes that are not ready on a zone
	// is unhealthy; 0.55.
	UnhealthyZone float64
}

func (c Config) defaulted() Config {
	set := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	if c.GracePeriod == 0 {
		c.GracePeriod = 50 * time.Second
	}
	if c.StartupGracePeriod == 0 {
		c.StartupGracePeriod = 60 * time.Second
	}
	if c.LargeCluster == 0 {
		c.LargeCluster = 50
	}
	set(&c.EvictionRate, 0.1)
	set(&c.SecondaryEvictionRate, 0.01)
	set(&c.UnhealthyZone, 0.55)
	return c
}

// leaseNamespace is where kubelets renew their Leases.
const leaseNamespace = "kube-node-lease"

// Keys that are no Node's: Node names have no such characters.
const zonePrefix = "/zone/"

// Controller syncs Nodes and zones. Make it with New.
type Controller struct {
	*control.Loop
	env      control.Env
	cfg      Config
	nodes    corelisters.NodeLister
	leases   cache.Indexer
	podIndex cache.Indexer
	control  control.PodControl

	mu     sync.Mutex
	health map[string]*health // by Node; guarded by mu
	zones  zones              // guarded by mu

	// evictions counts Nodes that got a NoExecute taint in their zone's turn.
	evictions *prometheus.CounterVec
}

// health is what is known of a Node's life, by our own clock.
type health struct {
	uid string
	// probe is when it last gave a sign of life.
	probe time.Time
	// heartbeat and renewal are the last signs.
	heartbeat, renewal time.Time
	// ready is its Ready condition as last seen, before we changed it.
	ready corev1.ConditionStatus
	// podsMarked says that its pods need no more marking since it was last
	// ready.
	podsMarked bool
}

// New makes the controller.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	nodes, pods := env.Informers.Core().V1().Nodes(), env.Informers.Core().V1().Pods()
	leases := env.Informers.Coordination().V1().Leases()
	c := &Controller{
		env:      env,
		cfg:      cfg.defaulted(),
		nodes:    nodes.Lister(),
		leases:   leases.Informer().GetIndexer(),
		podIndex: pods.Informer().GetIndexer(),
		control:  control.PodControl{Kube: env.Kube, Events: env.Events},
		health:   map[string]*health{},
	}
	c.zones = zones{cfg: c.cfg, byName: map[string]*zone{}}
	c.evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "node_collector_evictions_total", Help: "[STABLE] Number of Node evictions that happened since current instance of NodeController started.",
	}, []string{"zone"})
	// There is a series of each zone from its beginning.
	c.zones.made = func(name string) { c.evictions.WithLabelValues(name) }
	if err := env.Register(c.evictions, zoneCollector{c}); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "nodelifecycle", c.sync)
	c.Prepare(c.learn)
	if err := control.AddNodeIndex(pods.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(nodes.Informer(), control.Every(func(n *corev1.Node) { c.Add(n.Name) })); err != nil {
		return nil, err
	}
	renewed := func(l *coordv1.Lease) {
		if l.Namespace == leaseNamespace {
			c.renewed(l)
		}
	}
	if err := c.Watch(leases.Informer(), control.Handlers(renewed, func(_, l *coordv1.Lease) { renewed(l) }, nil)); err != nil {
		return nil, err
	}
	// A pod may come to a dead node, or claim to be ready there.
	pod := func(p *corev1.Pod) {
		if p.Spec.NodeName == "" || !podfacts.Ready(p) {
			return
		}
		c.mu.Lock()
		h := c.health[p.Spec.NodeName]
		again := h != nil && h.ready == corev1.ConditionUnknown && h.podsMarked
		if again {
			h.podsMarked = false
		}
		c.mu.Unlock()
		if again {
			c.Add(p.Spec.NodeName)
		}
	}
	return c, c.Watch(pods.Informer(), control.Handlers(pod, func(old, cur *corev1.Pod) {
		if old.Spec.NodeName != cur.Spec.NodeName {
			pod(cur)
		}
	}, nil))
}

// learn notes all Nodes there are before the first is judged: a zone is told by all of
// its own, and that none at all is ready by all of the cluster's.
func (c *Controller) learn(context.Context) error {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, n := range all {
		c.observe(n)
	}
	return nil
}

// renewed notes a sign of life: any other time than the last, for the node's clock may have
// been set back. It needs no sync: when the alarm goes off, it will be seen.
func (c *Controller) renewed(l *coordv1.Lease) {
	if l.Spec.RenewTime == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.health[l.Name]; h != nil && !l.Spec.RenewTime.Time.Equal(h.renewal) {
		h.renewal = l.Spec.RenewTime.Time
		h.probe = c.env.Clock.Now()
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	if z, ok := strings.CutPrefix(key, zonePrefix); ok {
		return c.syncZone(ctx, z)
	}
	n, err := c.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	return c.syncNode(ctx, n)
}

func (c *Controller) forget(name string) {
	c.mu.Lock()
	h := c.health[name]
	delete(c.health, name)
	c.zones.leave(name)
	wake := c.judge()
	c.mu.Unlock()
	if h != nil {
		c.record(name, h.uid, "RemovingNode", "Removing Node "+name+" from Controller")
	}
	c.wake(wake)
}

// record records an event about a Node that may be gone.
func (c *Controller) record(name, uid, reason, event string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(uid)}
	c.env.Events.Eventf(ref, corev1.EventTypeNormal, reason, "Node %s event: %s", name, event)
}

func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	return nodeCondition(&n.Status, corev1.NodeReady)
}

func nodeCondition(s *corev1.NodeStatus, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// observe notes what n shows, and returns its readiness, empty if it never
// reported, and how long it may still be silent.
func (c *Controller) observe(n *corev1.Node) (ready corev1.ConditionStatus, left time.Duration) {
	t := c.env.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.health[n.Name]
	if h == nil || h.uid != string(n.UID) {
		h = &health{uid: string(n.UID), probe: t}
		c.health[n.Name] = h
		defer c.record(n.Name, h.uid, "RegisteredNode", "Registered Node "+n.Name+" in Controller")
		// The lease may be older than our knowledge of the Node.
		if obj, ok, err := c.leases.GetByKey(leaseNamespace + "/" + n.Name); err == nil && ok {
			if l, ok := obj.(*coordv1.Lease); ok && l.Spec.RenewTime != nil {
				h.renewal = l.Spec.RenewTime.Time
			}
		}
	}
	grace := c.cfg.GracePeriod
	if ready := readyCondition(n); ready == nil {
		// It never reported.
		h.ready = ""
		grace = c.cfg.StartupGracePeriod
		if h.heartbeat.IsZero() && h.renewal.IsZero() {
			h.probe = n.CreationTimestamp.Time
		}
	} else {
		h.ready = ready.Status
		if beat := ready.LastHeartbeatTime.Time; !beat.Equal(h.heartbeat) && ready.Status != corev1.ConditionUnknown {
			h.heartbeat = beat
			h.probe = t
		}
	}
	if h.ready == corev1.ConditionTrue {
		h.podsMarked = false
	}
	c.zones.join(n, h.ready)
	return h.ready, h.probe.Add(grace).Sub(t)
}

func (c *Controller) syncNode(ctx context.Context, n *corev1.Node) error {
	var errs []error
	if err := c.reconcileLabels(ctx, n); err != nil {
		errs = append(errs, err)
	}
	ready, left := c.observe(n)
	if left <= 0 {
		if err := c.askLease(ctx, n.Name); err != nil {
			return errors.Join(append(errs, err)...)
		}
		updated, err := c.declareUnknown(ctx, n)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if updated != nil {
			ready, _ = c.observe(updated)
			n = updated
		}
		// Silent nodes are looked at again in a while: a lease that comes
		// back does not change the Node.
		left = c.cfg.GracePeriod
	}
	c.AddAfter(n.Name, left+time.Millisecond)
	n, err := c.conditionTaints(ctx, n)
	if err != nil {
		errs = append(errs, err)
	}
	// A kubelet that reports itself not ready sees to its pods.
	if ready == corev1.ConditionUnknown {
		if err := c.markPods(ctx, n); err != nil {
			errs = append(errs, err)
		}
	}
	c.mu.Lock()
	wake := c.judge()
	c.mu.Unlock()
	c.wake(wake)
	if err := c.executeTaints(ctx, n, ready); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// askLease is an error unless the Lease of a Node, as the API has it, is the one that
// the cache shows: while leases are late, nobody can be said to be silent.
func (c *Controller) askLease(ctx context.Context, name string) error {
	version := ""
	if obj, ok, err := c.leases.GetByKey(leaseNamespace + "/" + name); err == nil && ok {
		if l, ok := obj.(*coordv1.Lease); ok {
			version = l.ResourceVersion
		}
	}
	live, err := c.env.Kube.CoordinationV1().Leases(leaseNamespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking at the lease of node %s: %w", name, err)
	case live.ResourceVersion != version:
		return fmt.Errorf("lease of node %s: %w", name, control.ErrStale)
	}
	return nil
}

// declareUnknown writes Unknown to the conditions of a silent Node; nil if they
// say so already.
func (c *Controller) declareUnknown(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	now := metav1.NewTime(c.env.Clock.Now())
	next := n.DeepCopy()
	changed, wasReady := false, false
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		cond := nodeCondition(&next.Status, kind)
		if cond == nil {
			next.Status.Conditions = append(next.Status.Conditions, corev1.NodeCondition{
				Type:               kind,
				Status:             corev1.ConditionUnknown,
				Reason:             "NodeStatusNeverUpdated",
				Message:            "Kubelet never posted node status.",
				LastHeartbeatTime:  n.CreationTimestamp,
				LastTransitionTime: now,
			})
			changed = true
			continue
		}
		if cond.Status == corev1.ConditionUnknown {
			continue
		}
		wasReady = wasReady || kind == corev1.NodeReady && cond.Status == corev1.ConditionTrue
		cond.Status = corev1.ConditionUnknown
		cond.Reason = "NodeStatusUnknown"
		cond.Message = "Kubelet stopped posting node status."
		cond.LastTransitionTime = now
		changed = true
	}
	if !changed {
		return nil, nil
	}
	written, err := c.env.Kube.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	c.env.Log.WarnContext(ctx, "node fell silent", "node", n.Name)
	if wasReady {
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
		c.env.Events.Eventf(ref, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	}
	return written, nil
}

// markPods marks the pods of a Node that is not ready as not ready, once.
func (c *Controller) markPods(ctx context.Context, n *corev1.Node) error {
	c.mu.Lock()
	h := c.health[n.Name]
	marked := h == nil || h.podsMarked
	if h != nil {
		h.podsMarked = true
	}
	c.mu.Unlock()
	if marked {
		return nil
	}
	pods, err := control.PodsOn(c.podIndex, n.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods {
		if !podfacts.Ready(p) {
			continue
		}
		next := p.DeepCopy()
		cond := control.PodCondition(&next.Status, corev1.PodReady)
		cond.Status = corev1.ConditionFalse
		cond.LastTransitionTime = metav1.NewTime(c.env.Clock.Now())
		_, err := c.env.Kube.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.env.Events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	if err := errors.Join(errs...); err != nil {
		c.mu.Lock()
		h.podsMarked = false
		c.mu.Unlock()
		return err
	}
	return nil
}

// judge works out the zones' states anew and returns the keys to wake. c.mu is
// held.
func (c *Controller) judge() []string {
	was := c.zones.halted
	wake := c.zones.judge()
	if was && !c.zones.halted {
		// What was silent while all were had no chance to be heard.
		for _, h := range c.health {
			h.probe = c.env.Clock.Now()
		}
	}
	return wake
}

func (c *Controller) wake(keys []string) {
	for _, k := range keys {
		c.Add(k)
	}
}
