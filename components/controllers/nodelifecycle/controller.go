// Package nodelifecycle monitors the health of Nodes. It sets the conditions of unresponsive Nodes
// to Unknown, adds taints according to the conditions, and marks the pods of unresponsive Nodes as
// not ready. The taint eviction controller evicts pods because of NoExecute taints.
//
// https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
//
// There is no periodic check of all Nodes: each Node is checked when it or its Lease changes, and
// when its grace period is over.
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
	"hyperkube/internal/pod/podutil"
)

// Config configures the controller. Zero values are upstream's defaults.
type Config struct {
	// GracePeriod is how long a Node may be unresponsive; 50 s.
	GracePeriod time.Duration
	// StartupGracePeriod is how long a Node that never reported its status may be unresponsive; 60
	// s.
	StartupGracePeriod time.Duration
	// EvictionRate is the number of Nodes per second in a healthy zone that get a NoExecute taint;
	// 0.1.
	EvictionRate float64
	// SecondaryEvictionRate is the rate in an unhealthy zone with more than LargeCluster Nodes;
	// 0.01. In a smaller unhealthy zone the rate is zero.
	SecondaryEvictionRate float64
	// LargeCluster is the number of Nodes up to which a zone is small; 50.
	LargeCluster int
	// UnhealthyZone is the fraction of Nodes that are not ready at which a zone is unhealthy; 0.55.
	UnhealthyZone float64
}

// defaulted returns c with upstream's defaults for zero values.
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

// leaseNamespace is the namespace of the kubelets' Leases.
const leaseNamespace = "kube-node-lease"

// zonePrefix is the prefix of the keys of zones in the queue. Other keys are node names, which cannot contain a slash.
const zonePrefix = "/zone/"

// Controller reconciles Nodes, and the zones in which they are grouped. Each sync handles one Node, or adds a taint to
// one Node of a zone. Use New to create it.
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

	// evictions counts the NoExecute taints that were added at a zone's rate.
	evictions *prometheus.CounterVec
}

// health is what the controller has observed of a Node: the last sign of life of its kubelet and its Ready condition.
type health struct {
	uid string
	// lastSeen is when the controller last observed a heartbeat or Lease renewal.
	lastSeen time.Time
	// heartbeat and renewal are the last observed times of the Node's clock.
	heartbeat, renewal time.Time
	// ready is the last observed Ready condition, before this controller changed it.
	ready corev1.ConditionStatus
	// podsMarked is true if all pods of the Node were marked as not ready since it was last ready.
	podsMarked bool
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
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
	// Create the time series of a zone together with the zone.
	c.zones.onNewZone = func(name string) { c.evictions.WithLabelValues(name) }
	if err := env.Register(c.evictions, zoneCollector{c}); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "nodelifecycle", c.sync)
	c.Prepare(c.observeAll)
	if err := control.AddNodeIndex(pods.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(nodes.Informer(), control.AnyEvent(func(n *corev1.Node) { c.Add(n.Name) })); err != nil {
		return nil, err
	}
	renewed := func(l *coordv1.Lease) {
		if l.Namespace == leaseNamespace {
			c.leaseRenewed(l)
		}
	}
	if err := c.Watch(leases.Informer(), control.Handlers(renewed, func(_, l *coordv1.Lease) { renewed(l) }, nil)); err != nil {
		return nil, err
	}
	// A pod on an unresponsive node may be added or become ready later.
	pod := func(p *corev1.Pod) {
		if p.Spec.NodeName == "" || !podutil.Ready(p) {
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

// observeAll observes all Nodes before the first sync, because the state of a zone depends on all its Nodes. Otherwise
// the first Nodes would be judged by a part of their zone.
func (c *Controller) observeAll(context.Context) error {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, n := range all {
		c.observe(n)
	}
	return nil
}

// leaseRenewed records that a kubelet has renewed the Lease of its Node, unless the Node is not known yet. Any change
// of the renew time counts, because the node's clock may have been set back. No sync is needed: the check at the end of
// the grace period uses the new time.
func (c *Controller) leaseRenewed(l *coordv1.Lease) {
	if l.Spec.RenewTime == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.health[l.Name]; h != nil && !l.Spec.RenewTime.Time.Equal(h.renewal) {
		h.renewal = l.Spec.RenewTime.Time
		h.lastSeen = c.env.Clock.Now()
	}
}

// sync handles a Node by name, or a zone if key has zonePrefix.
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

// forget discards the state of a deleted Node and updates the state of its zone.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	h := c.health[name]
	delete(c.health, name)
	c.zones.leave(name)
	wake := c.updateZoneStates()
	c.mu.Unlock()
	if h != nil {
		c.record(name, h.uid, "RemovingNode", "Removing Node "+name+" from Controller")
	}
	c.enqueue(wake)
}

// record emits the event reason about the Node with this name and UID, whose object may have been deleted.
func (c *Controller) record(name, uid, reason, event string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(uid)}
	c.env.Events.Eventf(ref, corev1.EventTypeNormal, reason, "Node %s event: %s", name, event)
}

// readyCondition returns the Ready condition of n, or nil. The result points into n.
func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	return nodeCondition(&n.Status, corev1.NodeReady)
}

// nodeCondition returns the condition of s of the type kind, or nil. The result points into s.
func nodeCondition(s *corev1.NodeStatus, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// observe records the health of the Node n, with an event if n is new. It returns the status of its Ready condition, or
// "" if n never reported its status, and the time that is left until n counts as unresponsive; it is zero or negative
// if n does.
func (c *Controller) observe(n *corev1.Node) (ready corev1.ConditionStatus, left time.Duration) {
	t := c.env.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.health[n.Name]
	if h == nil || h.uid != string(n.UID) {
		h = &health{uid: string(n.UID), lastSeen: t}
		c.health[n.Name] = h
		defer c.record(n.Name, h.uid, "RegisteredNode", "Registered Node "+n.Name+" in Controller")
		// The Lease may have been renewed before the controller observed the Node.
		if obj, ok, err := c.leases.GetByKey(leaseNamespace + "/" + n.Name); err == nil && ok {
			if l, ok := obj.(*coordv1.Lease); ok && l.Spec.RenewTime != nil {
				h.renewal = l.Spec.RenewTime.Time
			}
		}
	}
	grace := c.cfg.GracePeriod
	if ready := readyCondition(n); ready == nil {
		// The Node never reported its status.
		h.ready = ""
		grace = c.cfg.StartupGracePeriod
		if h.heartbeat.IsZero() && h.renewal.IsZero() {
			h.lastSeen = n.CreationTimestamp.Time
		}
	} else {
		h.ready = ready.Status
		if beat := ready.LastHeartbeatTime.Time; !beat.Equal(h.heartbeat) && ready.Status != corev1.ConditionUnknown {
			h.heartbeat = beat
			h.lastSeen = t
		}
	}
	if h.ready == corev1.ConditionTrue {
		h.podsMarked = false
	}
	c.zones.join(n, h.ready)
	return h.ready, h.lastSeen.Add(grace).Sub(t)
}

// syncNode sets the conditions of a Node to Unknown if it is unresponsive, and updates its labels and taints. It marks
// the pods of a Node whose Ready condition is Unknown as not ready. It schedules another check for the end of the grace
// period.
func (c *Controller) syncNode(ctx context.Context, n *corev1.Node) error {
	var errs []error
	if err := c.reconcileLabels(ctx, n); err != nil {
		errs = append(errs, err)
	}
	ready, left := c.observe(n)
	if left <= 0 {
		if err := c.checkLeaseCache(ctx, n.Name); err != nil {
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
		// Check unresponsive Nodes again later: a renewed Lease does not change the Node.
		left = c.cfg.GracePeriod
	}
	c.AddAfter(n.Name, left+time.Millisecond)
	n, err := c.conditionTaints(ctx, n)
	if err != nil {
		errs = append(errs, err)
	}
	// A kubelet that reports its node as not ready updates the status of its pods itself.
	if ready == corev1.ConditionUnknown {
		if err := c.markPods(ctx, n); err != nil {
			errs = append(errs, err)
		}
	}
	c.mu.Lock()
	wake := c.updateZoneStates()
	c.mu.Unlock()
	c.enqueue(wake)
	if err := c.executeTaints(ctx, n, ready); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkLeaseCache returns an error unless the cache contains the current Lease of a Node, which it gets from the API
// server. While the cache is stale, Nodes must not be marked as unresponsive.
func (c *Controller) checkLeaseCache(ctx context.Context, name string) error {
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
		return fmt.Errorf("getting lease of node %s: %w", name, err)
	case live.ResourceVersion != version:
		return fmt.Errorf("lease of node %s: %w", name, control.ErrStale)
	}
	return nil
}

// declareUnknown sets the conditions of an unresponsive Node to Unknown and returns the updated Node. It returns nil
// without an error if they are Unknown already.
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
	c.env.Log.WarnContext(ctx, "kubelet of node did not report in the grace period; conditions of the Node are set to Unknown, and its pods are evicted unless the kubelet reports before their tolerations expire", "node", n.Name)
	if wasReady {
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
		c.env.Events.Eventf(ref, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	}
	return written, nil
}

// markPods sets the Ready condition of the pods on an unresponsive Node to False, so that Services do not send traffic
// to them. It does nothing if it was done since the Node was last ready.
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
	pods, err := control.PodsOnNode(c.podIndex, n.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods {
		if !podutil.Ready(p) {
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

// updateZoneStates recomputes the states of the zones. It returns the keys to enqueue, for which the rate of evictions
// may have changed. The caller must hold c.mu.
func (c *Controller) updateZoneStates() []string {
	was := c.zones.allDown
	wake := c.zones.updateStates()
	if was && !c.zones.allDown {
		// While all Nodes were unresponsive, the controller was probably disconnected, so restart
		// the grace periods.
		for _, h := range c.health {
			h.lastSeen = c.env.Clock.Now()
		}
	}
	return wake
}

func (c *Controller) enqueue(keys []string) {
	for _, k := range keys {
		c.Add(k)
	}
}
