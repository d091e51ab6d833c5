// Package podgc deletes orphaned pods: the oldest terminated ones above a threshold, pods on nodes
// that were deleted or are out of service, and unscheduled pods that are being deleted.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
package podgc

import (
	"context"
	"errors"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

const (
	// period is the delay between an event and the pass that handles it, so that one pass handles
	// many events.
	period = 20 * time.Second
	// quarantine is how long a node must be missing before its pods are deleted, because it may be
	// about to register.
	quarantine = 40 * time.Second
	// passKey is the only key of the work queue. Its sync is one pass over all pods.
	passKey = "pass"
)

// Controller checks all pods in one pass, some time after a change that may have orphaned a pod.
type Controller struct {
	*control.Loop
	env       control.Env
	threshold int
	pods      corelisters.PodLister
	nodes     corelisters.NodeLister
	control   control.PodControl

	// missing contains, for each node that does not exist but has pods, since when it has been missing. Only the
	// single worker uses it.
	missing map[string]time.Time
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. threshold is the
// number of terminated pods to keep; zero or less keeps all. The caller then starts the informers and calls Run.
func New(env control.Env, threshold int) (*Controller, error) {
	env = env.Defaulted()
	env.Workers = 1
	pods, nodes := env.Informers.Core().V1().Pods(), env.Informers.Core().V1().Nodes()
	c := &Controller{
		env:       env,
		threshold: threshold,
		pods:      pods.Lister(),
		nodes:     nodes.Lister(),
		control:   control.PodControl{Kube: env.Kube, Events: env.Events},
		missing:   map[string]time.Time{},
	}
	c.Loop = control.NewLoop(env, "podgc", c.sync)
	pod := func(p *corev1.Pod) {
		if c.mayRequirePass(p) {
			c.AddAfter(passKey, period)
		}
	}
	if err := c.Watch(pods.Informer(), control.Handlers(pod, func(_, p *corev1.Pod) { pod(p) }, nil)); err != nil {
		return nil, err
	}
	return c, c.Watch(nodes.Informer(), control.Handlers(nil,
		func(_, n *corev1.Node) {
			if outOfService(n) {
				c.AddAfter(passKey, period)
			}
		},
		func(*corev1.Node) { c.AddAfter(passKey, period) }))
}

// mayRequirePass reports whether p may be a pod that a pass has to delete, so that a pass must be scheduled.
func (c *Controller) mayRequirePass(p *corev1.Pod) bool {
	if c.threshold > 0 && podutil.Terminal(p) {
		return true
	}
	if p.Spec.NodeName == "" {
		return p.DeletionTimestamp != nil
	}
	n, err := c.nodes.Get(p.Spec.NodeName)
	return apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil && outOfService(n)
}

// sync runs a pass over all pods. It tries all kinds of deletions even if some fail.
func (c *Controller) sync(ctx context.Context, _ string) error {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	return errors.Join(
		c.finished(ctx, pods),
		c.orphans(ctx, pods),
		c.unscheduled(ctx, pods),
		c.outOfService(ctx, pods),
	)
}

// finished deletes terminated pods above the threshold: evicted ones first, then those created first. With a
// threshold of 0 or less it deletes none.
func (c *Controller) finished(ctx context.Context, pods []*corev1.Pod) error {
	if c.threshold <= 0 {
		return nil
	}
	var done []*corev1.Pod
	for _, p := range pods {
		if podutil.Terminal(p) {
			done = append(done, p)
		}
	}
	excess := len(done) - c.threshold
	if excess <= 0 {
		return nil
	}
	evicted := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" }
	sort.Slice(done, func(i, j int) bool {
		a, b := done[i], done[j]
		if x, y := evicted(a), evicted(b); x != y {
			return x
		}
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Before(&b.CreationTimestamp)
		}
		return a.Name < b.Name
	})
	var errs []error
	for _, p := range done[:excess] {
		errs = append(errs, c.remove(ctx, p, nil))
	}
	return errors.Join(errs...)
}

// orphans deletes the pods of nodes that have not existed for the quarantine period. It schedules another pass for
// nodes that have been missing for a shorter time.
func (c *Controller) orphans(ctx context.Context, pods []*corev1.Pod) error {
	now := c.env.Clock.Now()
	byNode := map[string][]*corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
		}
	}
	for name := range c.missing {
		if _, ok := byNode[name]; !ok {
			delete(c.missing, name)
		}
	}
	var errs []error
	for name, orphans := range byNode {
		_, err := c.nodes.Get(name)
		if err == nil {
			delete(c.missing, name)
			continue
		}
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
			continue
		}
		since, ok := c.missing[name]
		if !ok {
			since = now
			c.missing[name] = now
		}
		if left := quarantine - now.Sub(since); left > 0 {
			c.AddAfter(passKey, left)
			continue
		}
		// The cache may be stale.
		if _, err := c.env.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			delete(c.missing, name)
			errs = append(errs, err)
			continue
		}
		for _, p := range orphans {
			errs = append(errs, c.remove(ctx, p, &corev1.PodCondition{
				Type:               corev1.DisruptionTarget,
				Status:             corev1.ConditionTrue,
				ObservedGeneration: p.Generation,
				Reason:             "DeletionByPodGC",
				Message:            "PodGC: node no longer exists",
			}))
		}
	}
	return errors.Join(errs...)
}

// unscheduled deletes the pods that are being deleted and have no node, because no kubelet completes their deletion.
func (c *Controller) unscheduled(ctx context.Context, pods []*corev1.Pod) error {
	var errs []error
	for _, p := range pods {
		if p.DeletionTimestamp != nil && p.Spec.NodeName == "" {
			errs = append(errs, c.remove(ctx, p, nil))
		}
	}
	return errors.Join(errs...)
}

// outOfService deletes the pods that are being deleted on nodes that are out of service, because their kubelets do not
// complete the deletion.
func (c *Controller) outOfService(ctx context.Context, pods []*corev1.Pod) error {
	var errs []error
	for _, p := range pods {
		if p.DeletionTimestamp == nil || p.Spec.NodeName == "" {
			continue
		}
		n, err := c.nodes.Get(p.Spec.NodeName)
		if err != nil || !outOfService(n) {
			continue
		}
		errs = append(errs, c.remove(ctx, p, nil))
	}
	return errors.Join(errs...)
}

// outOfService reports whether n has the out-of-service taint and is not ready.
func outOfService(n *corev1.Node) bool {
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
			return false
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// remove deletes p with a grace period of zero. If p has not terminated, remove first sets its phase to Failed and, if
// cond is not nil, adds cond to its status.
func (c *Controller) remove(ctx context.Context, p *corev1.Pod, cond *corev1.PodCondition) error {
	if !podutil.Terminal(p) {
		next := *p.Status.DeepCopy()
		next.Phase = corev1.PodFailed
		if cond != nil {
			control.SetPodCondition(&next, *cond, c.env.Clock.Now())
		}
		if err := c.control.PatchStatus(ctx, p, next); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
	}
	err := c.env.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0),
		Preconditions:      metav1.NewUIDPreconditions(string(p.UID)),
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
