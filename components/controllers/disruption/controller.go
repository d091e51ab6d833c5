// Package disruption maintains the status of PodDisruptionBudgets: how many pods they cover, how
// many of these are healthy, and how many may be evicted now. An eviction decrements the allowed
// disruptions in the status; this controller recomputes them.
//
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/
package disruption

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

const (
	// deletionTimeout is how long after its eviction a pod may exist without a deletion timestamp.
	// After that it counts as healthy again.
	deletionTimeout = 2 * time.Minute
	// staleTimeout is how long a pod may have the DisruptionTarget condition without a deletion
	// timestamp.
	staleTimeout = 2 * time.Minute
	// podPrefix is the prefix of the keys of pods. A namespace cannot contain a colon.
	podPrefix = "pod:"
)

// Controller maintains the status of PodDisruptionBudgets: how many of their pods are healthy, and how many may be
// evicted. It also clears DisruptionTarget conditions of pods that were not deleted.
type Controller struct {
	*control.Loop
	env     control.Env
	scales  Scales
	control control.PodControl

	budgets      policylisters.PodDisruptionBudgetLister
	pods         corelisters.PodLister
	replicaSets  appslisters.ReplicaSetLister
	deployments  appslisters.DeploymentLister
	statefulSets appslisters.StatefulSetLister
	rcs          corelisters.ReplicationControllerLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. scales must not be
// nil; it returns the size of workloads of kinds without an informer, such as custom resources. The caller then starts
// the informers and calls Run.
func New(env control.Env, scales Scales) (*Controller, error) {
	if scales == nil {
		return nil, errors.New("disruption: scales are missing")
	}
	env = env.Defaulted()
	core, apps := env.Informers.Core().V1(), env.Informers.Apps().V1()
	budgets := env.Informers.Policy().V1().PodDisruptionBudgets()
	c := &Controller{
		env:          env,
		scales:       scales,
		control:      control.PodControl{Kube: env.Kube, Events: env.Events},
		budgets:      budgets.Lister(),
		pods:         core.Pods().Lister(),
		replicaSets:  apps.ReplicaSets().Lister(),
		deployments:  apps.Deployments().Lister(),
		statefulSets: apps.StatefulSets().Lister(),
		rcs:          core.ReplicationControllers().Lister(),
	}
	c.Loop = control.NewLoop(env, "disruption", c.sync)
	for _, i := range []cache.SharedIndexInformer{
		apps.ReplicaSets().Informer(), apps.Deployments().Informer(), apps.StatefulSets().Informer(), core.ReplicationControllers().Informer(),
	} {
		c.Await(i)
	}
	budget := func(b *policyv1.PodDisruptionBudget) { c.AddObject(b) }
	if err := c.Watch(budgets.Informer(), control.Handlers(budget, func(_, b *policyv1.PodDisruptionBudget) { budget(b) }, nil)); err != nil {
		return nil, err
	}
	return c, c.Watch(core.Pods().Informer(), control.Handlers(
		func(p *corev1.Pod) {
			c.enqueueBudgets(p)
			c.scheduleStaleCheck(p)
		},
		func(old, p *corev1.Pod) {
			c.enqueueBudgets(p)
			if !maps.Equal(old.Labels, p.Labels) {
				c.enqueueBudgets(old)
			}
			c.scheduleStaleCheck(p)
		},
		c.enqueueBudgets))
}

// enqueueBudgets enqueues the budgets whose selectors match p. If there are several, it emits an event on p.
func (c *Controller) enqueueBudgets(p *corev1.Pod) {
	all, err := c.budgets.PodDisruptionBudgets(p.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	var first *policyv1.PodDisruptionBudget
	n := 0
	for _, b := range all {
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(p.Labels)) {
			c.AddObject(b)
			if n++; first == nil {
				first = b
			}
		}
	}
	if n > 1 {
		// All these budgets are updated, but a pod with several budgets cannot be evicted.
		c.env.Events.Eventf(p, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", p.Namespace, p.Name, first.Name)
	}
}

// scheduleStaleCheck schedules a sync of p for the time at which its DisruptionTarget condition is
// stale.
func (c *Controller) scheduleStaleCheck(p *corev1.Pod) {
	if left, ok := c.disrupted(p); ok {
		c.AddAfter(podPrefix+p.Namespace+"/"+p.Name, left)
	}
}

// disrupted reports whether p, which has not terminated, has the DisruptionTarget condition but no deletion timestamp.
// left is the time until the condition is stale, zero if it already is. Conditions set by the kubelet never become
// stale, because the announced termination may take arbitrarily long.
func (c *Controller) disrupted(p *corev1.Pod) (left time.Duration, ok bool) {
	if p.DeletionTimestamp != nil || podutil.Terminal(p) {
		return 0, false
	}
	cond := control.PodCondition(&p.Status, corev1.DisruptionTarget)
	if cond == nil || cond.Status != corev1.ConditionTrue || cond.Reason == corev1.PodReasonTerminationByKubelet {
		return 0, false
	}
	return max(0, staleTimeout-c.env.Clock.Now().Sub(cond.LastTransitionTime.Time)), true
}

// sync updates the status of the budget with the key, or clears a stale condition if the key is that of a pod. If the
// pods of a budget cannot be counted, it sets the number of allowed disruptions to zero.
func (c *Controller) sync(ctx context.Context, key string) error {
	name, isPod := strings.CutPrefix(key, podPrefix)
	namespace, name := control.SplitKey(name)
	if isPod {
		return c.syncPod(ctx, namespace, name)
	}
	b, err := c.budgets.PodDisruptionBudgets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.syncBudget(ctx, b)
	if err == nil || apierrors.IsConflict(err) || ctx.Err() != nil {
		return err
	}
	// As long as the pods cannot be counted, no disruption is allowed.
	return errors.Join(err, c.fail(ctx, b, err))
}

// syncPod clears the DisruptionTarget condition of a pod if it is stale. If it becomes stale later, syncPod schedules
// another sync.
func (c *Controller) syncPod(ctx context.Context, namespace, name string) error {
	p, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	left, ok := c.disrupted(p)
	if !ok {
		return nil
	}
	if left > 0 {
		c.AddAfter(podPrefix+namespace+"/"+name, left)
		return nil
	}
	next := *p.Status.DeepCopy()
	control.SetPodCondition(&next, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, ObservedGeneration: p.Generation,
	}, c.env.Clock.Now())
	if err := c.control.PatchStatus(ctx, p, next); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
