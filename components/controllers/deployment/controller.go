// Package deployment rolls out Deployments with ReplicaSets.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/
//
// One sync reads the Deployment and its ReplicaSets, makes at most one scaling step, and writes the
// status. The changes of the ReplicaSets trigger the next sync.
package deployment

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/replicaset"
)

// Kind is Deployment, the kind in the owner references of the ReplicaSets that the controller creates.
var Kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Controller reconciles Deployments. Each sync handles one Deployment. Use New to create it.
type Controller struct {
	*control.Loop
	env         control.Env
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	setIndex    cache.Indexer
	podIndex    cache.Indexer
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	deployments := env.Informers.Apps().V1().Deployments()
	sets := env.Informers.Apps().V1().ReplicaSets()
	pods := env.Informers.Core().V1().Pods()
	c := &Controller{
		env:         env,
		deployments: deployments.Lister(),
		sets:        sets.Lister(),
		setIndex:    sets.Informer().GetIndexer(),
		podIndex:    pods.Informer().GetIndexer(),
	}
	c.Loop = control.NewLoop(env, "deployment", env.Traced("Deployment", deployments.Informer(), c.sync))
	if err := control.AddOwnerIndex(sets.Informer(), pods.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(deployments.Informer(), control.AnyEvent(func(d *appsv1.Deployment) { c.AddObject(d) })); err != nil {
		return nil, err
	}
	if err := c.Watch(sets.Informer(), control.Handlers(c.setAdded, c.setChanged, c.setDeleted)); err != nil {
		return nil, err
	}
	// A Recreate rollout waits until the last old pod is deleted.
	return c, c.Watch(pods.Informer(), control.Handlers(nil, nil, c.podDeleted))
}

// owner returns the Deployment to which a ReplicaSet's controller reference refers, or nil.
func (c *Controller) owner(namespace string, ref *metav1.OwnerReference) *appsv1.Deployment {
	return control.Owner(ref, Kind, c.deployments.Deployments(namespace).Get)
}

// setAdded enqueues the Deployments that a new ReplicaSet affects: its owner, or those that may adopt it.
func (c *Controller) setAdded(rs *appsv1.ReplicaSet) {
	if rs.DeletionTimestamp != nil {
		c.setDeleted(rs)
		return
	}
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		if d := c.owner(rs.Namespace, ref); d != nil {
			c.AddObject(d)
		}
		return
	}
	c.addMatching(rs)
}

// setChanged enqueues the Deployments that a changed ReplicaSet affects: its former and current owner. If it has no
// owner, and its labels or its owner have changed, it enqueues those that may adopt it.
func (c *Controller) setChanged(old, cur *appsv1.ReplicaSet) {
	was, is := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(cur)
	changed := !equality.Semantic.DeepEqual(was, is)
	if changed {
		if d := c.owner(old.Namespace, was); d != nil {
			c.AddObject(d)
		}
	}
	if is != nil {
		if d := c.owner(cur.Namespace, is); d != nil {
			c.AddObject(d)
		}
		return
	}
	if changed || !labels.Equals(old.Labels, cur.Labels) {
		c.addMatching(cur)
	}
}

// setDeleted enqueues the owner of a deleted ReplicaSet.
func (c *Controller) setDeleted(rs *appsv1.ReplicaSet) {
	if d := c.owner(rs.Namespace, metav1.GetControllerOfNoCopy(rs)); d != nil {
		c.AddObject(d)
	}
}

// addMatching enqueues every Deployment that might adopt an orphaned ReplicaSet.
func (c *Controller) addMatching(rs *appsv1.ReplicaSet) {
	all, err := c.deployments.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		if control.Selects(d.Spec.Selector, rs.Labels) {
			c.AddObject(d)
		}
	}
}

// podDeleted enqueues the Deployment of a deleted pod if its strategy is Recreate, because the rollout may have waited
// for the deletion.
func (c *Controller) podDeleted(p *corev1.Pod) {
	rs := control.Owner(metav1.GetControllerOfNoCopy(p), replicaset.Kind, c.sets.ReplicaSets(p.Namespace).Get)
	if rs == nil {
		return
	}
	d := c.owner(rs.Namespace, metav1.GetControllerOfNoCopy(rs))
	if d != nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.AddObject(d)
	}
}

// sync makes one step of the rollout or scaling of the Deployment with this key, and updates its status. While the
// Deployment is paused, it only scales. It does not change ReplicaSets while the Deployment is being deleted, or if
// its selector is empty or invalid.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	shared, err := c.deployments.Deployments(namespace).Get(name)
	if err != nil {
		return nil // deleted; the garbage collector deletes its ReplicaSets
	}
	d := shared.DeepCopy()
	if equality.Semantic.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{}) {
		c.env.Events.Event(d, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		if d.Status.ObservedGeneration < d.Generation {
			d.Status.ObservedGeneration = d.Generation
			return c.writeStatus(ctx, d)
		}
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		c.env.Log.ErrorContext(ctx, "Deployment has an invalid selector, so its ReplicaSets are not created, scaled or deleted: recreate it with a valid selector", "deployment", key, "err", err)
		return nil
	}
	owned, err := c.claim(ctx, d, selector)
	if err != nil {
		return err
	}
	r := &rollout{Controller: c, d: d, owned: owned}
	if d.DeletionTimestamp != nil {
		if err := r.find(ctx, false); err != nil {
			return err
		}
		return r.syncStatus(ctx)
	}
	if err := r.recordPaused(ctx); err != nil {
		return err
	}
	if d.Spec.Paused {
		return r.scaleOnly(ctx)
	}
	if rev, ok := rollbackTo(d); ok {
		return r.rollback(ctx, rev)
	}
	if scaled := r.isScaling(); scaled {
		return r.scaleOnly(ctx)
	}
	switch d.Spec.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		return r.recreate(ctx)
	case appsv1.RollingUpdateDeploymentStrategyType:
		return r.rollingUpdate(ctx)
	}
	return fmt.Errorf("unexpected deployment strategy type: %s", d.Spec.Strategy.Type)
}

// claim adopts the ReplicaSets without a controller that the Deployment selects, releases those that it no longer
// selects, and returns those that it controls.
func (c *Controller) claim(ctx context.Context, d *appsv1.Deployment, selector labels.Selector) ([]*appsv1.ReplicaSet, error) {
	candidates, err := control.Owned[*appsv1.ReplicaSet](c.setIndex, d, true)
	if err != nil {
		return nil, err
	}
	claimer := control.Claimer[*appsv1.ReplicaSet]{
		Owner:    d,
		Kind:     Kind,
		Selector: selector,
		CanAdopt: control.CanAdopt(d, func(ctx context.Context) (*appsv1.Deployment, error) {
			return c.env.Kube.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		}),
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, kind types.PatchType, patch []byte) error {
			_, err := c.env.Kube.AppsV1().ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, kind, patch, metav1.PatchOptions{})
			return err
		},
	}
	return claimer.Claim(ctx, candidates)
}

// writeStatus writes the status of d and updates d with the API server's response.
func (c *Controller) writeStatus(ctx context.Context, d *appsv1.Deployment) error {
	written, err := c.env.Kube.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	written.DeepCopyInto(d)
	return nil
}
