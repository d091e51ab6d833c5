// Package tainteviction deletes pods from nodes with NoExecute taints that the pods do not
// tolerate, immediately or when the toleration expires.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
package tainteviction

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// Controller evicts pods that do not tolerate the NoExecute taints of their node.
type Controller struct {
	*control.Loop
	env      control.Env
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	podIndex cache.Indexer
	deleted  prometheus.Counter
	// late measures how long after the due time pods are deleted.
	late    prometheus.Histogram
	control control.PodControl

	mu      sync.Mutex
	pending map[string]eviction // pending evictions by the pod's key; guarded by mu
}

// eviction is the pending eviction of a pod from its tainted node: the pod's UID, when the pod was first observed
// there, and when it is evicted.
type eviction struct {
	uid types.UID
	// since is when the pod was first observed on the tainted node. The time of tolerations starts then, even if the
	// node's taints change. at is when the pod is evicted.
	since, at time.Time
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds an index to
// the informer of pods. The caller then starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	pods, nodes := env.Informers.Core().V1().Pods(), env.Informers.Core().V1().Nodes()
	c := &Controller{
		env:      env,
		pods:     pods.Lister(),
		nodes:    nodes.Lister(),
		podIndex: pods.Informer().GetIndexer(),
		control:  control.PodControl{Kube: env.Kube, Events: env.Events},
		pending:  map[string]eviction{},
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "taint_eviction_controller_pod_deletions_total",
			Help: "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.",
		}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "taint_eviction_controller_pod_deletion_duration_seconds",
			Help:    "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
	}
	if err := env.Register(c.deleted, c.late); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "tainteviction", c.sync)
	if err := control.AddNodeIndex(pods.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(pods.Informer(), control.Handlers(
		func(p *corev1.Pod) {
			if p.Spec.NodeName != "" {
				c.AddObject(p)
			}
		},
		func(old, cur *corev1.Pod) {
			if old.UID != cur.UID || old.Spec.NodeName != cur.Spec.NodeName || !equality.Semantic.DeepEqual(old.Spec.Tolerations, cur.Spec.Tolerations) {
				c.AddObject(cur)
			}
		},
		func(p *corev1.Pod) { c.AddObject(p) },
	)); err != nil {
		return nil, err
	}
	all := func(n *corev1.Node) {
		on, err := control.PodsOnNode(c.podIndex, n.Name)
		if err != nil {
			return
		}
		for _, p := range on {
			c.AddObject(p)
		}
	}
	return c, c.Watch(nodes.Informer(), control.Handlers(
		func(n *corev1.Node) {
			if len(noExecute(n)) > 0 {
				all(n)
			}
		},
		func(old, cur *corev1.Node) {
			if !equality.Semantic.DeepEqual(noExecute(old), noExecute(cur)) {
				all(cur)
			}
		},
		all,
	))
}

// noExecute returns the taints of n with the effect NoExecute.
func noExecute(n *corev1.Node) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

// sync evicts the pod with the key, schedules its eviction, or cancels it, depending on the taints of its node.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	p, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.removePending(key)
		return nil
	}
	if err != nil {
		return err
	}
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		c.removePending(key)
		return nil
	}
	n, err := c.nodes.Get(p.Spec.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var taints []corev1.Taint
	if err == nil {
		taints = noExecute(n)
	}
	stay, forever := tolerates(taints, p.Spec.Tolerations)
	if forever {
		if old, ok := c.removePending(key); ok && old.uid == p.UID {
			c.env.Events.Eventf(reference(p), corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return nil
	}
	if stay > 0 {
		now := c.env.Clock.Now()
		c.mu.Lock()
		e, ok := c.pending[key]
		if !ok || e.uid != p.UID {
			e = eviction{uid: p.UID, since: now}
		}
		e.at = e.since.Add(stay)
		c.pending[key] = e
		c.mu.Unlock()
		if left := e.at.Sub(now); left > 0 {
			c.AddAfter(key, left)
			return nil
		}
	}
	return c.evict(ctx, p, key)
}

// removePending removes the pending eviction of the pod with a key. It returns the eviction, and whether it existed.
func (c *Controller) removePending(key string) (eviction, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.pending[key]
	delete(c.pending, key)
	return e, ok
}

// tolerates returns how long a pod with the tolerations may stay on a node with the taints, zero if it must be evicted
// immediately. forever is true if it may stay without limit. For each taint, the first matching toleration counts; the
// shortest time of all taints applies.
func tolerates(taints []corev1.Taint, tolerations []corev1.Toleration) (stay time.Duration, forever bool) {
	forever = true
	for i := range taints {
		found := false
		for j := range tolerations {
			t := &tolerations[j]
			if !t.ToleratesTaint(logr.Logger{}, &taints[i], true) {
				continue
			}
			found = true
			if t.TolerationSeconds != nil {
				if d := time.Duration(max(0, *t.TolerationSeconds)) * time.Second; forever || d < stay {
					stay, forever = d, false
				}
			}
			break
		}
		if !found {
			return 0, false
		}
	}
	return stay, forever
}

// evict adds the condition DisruptionTarget to p, deletes p, and records in metrics how late the deletion is. key is
// the key of p. The pending eviction is kept if this fails.
func (c *Controller) evict(ctx context.Context, p *corev1.Pod, key string) error {
	c.env.Events.Eventf(reference(p), corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", key)
	next := *p.Status.DeepCopy()
	if control.SetPodCondition(&next, corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		Status:             corev1.ConditionTrue,
		ObservedGeneration: p.Generation,
		Reason:             "DeletionByTaintManager",
		Message:            "Taint manager: deleting due to NoExecute taint",
	}, c.env.Clock.Now()) {
		if err := c.control.PatchStatus(ctx, p, next); err != nil {
			if apierrors.IsNotFound(err) {
				c.removePending(key)
				return nil
			}
			return err
		}
	}
	err := c.env.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	waited, _ := c.removePending(key)
	if err == nil {
		c.deleted.Inc()
		overdue := 0.0 // zero for pods without a matching toleration
		if !waited.at.IsZero() {
			overdue = c.env.Clock.Since(waited.at).Seconds()
		}
		c.late.Observe(overdue)
	}
	return nil
}

// reference returns the reference to p for events.
func reference(p *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, Namespace: p.Namespace, UID: p.UID}
}
