// Package daemonset runs a pod of each DaemonSet on every matching node.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// Kind is DaemonSet, the kind in the owner references of the pods and revisions that the controller creates.
var Kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// burst is the maximum number of pods of one DaemonSet that one sync creates or deletes.
const burst = 250

// The initial and maximum back-off before a failed pod is replaced.
const (
	firstBackoff = time.Second
	lastBackoff  = 15 * time.Minute
)

// Controller reconciles DaemonSets. Each sync handles one DaemonSet. Use New to create it.
type Controller struct {
	*control.Loop
	env       control.Env
	pods      control.PodControl
	sets      appslisters.DaemonSetLister
	nodes     corelisters.NodeLister
	podIndex  cache.Indexer
	revisions cache.Indexer
	expect    *control.Expectations

	mu sync.Mutex
	// failed tracks the back-off of failed pods by DaemonSet and node.
	failed map[backoffKey]failure // guarded by mu
}

// backoffKey identifies the pod of a DaemonSet, by the DaemonSet's key and UID, on a node.
type backoffKey struct {
	set  string
	uid  types.UID
	node string
}

// failure is the back-off for failed pods of a DaemonSet on a node: the delay, and the time of the last failure.
type failure struct {
	wait  time.Duration
	since time.Time
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	sets, nodes := env.Informers.Apps().V1().DaemonSets(), env.Informers.Core().V1().Nodes()
	pods, revisions := env.Informers.Core().V1().Pods(), env.Informers.Apps().V1().ControllerRevisions()
	c := &Controller{
		env:       env,
		pods:      control.PodControl{Kube: env.Kube, Events: env.Events},
		sets:      sets.Lister(),
		nodes:     nodes.Lister(),
		podIndex:  pods.Informer().GetIndexer(),
		revisions: revisions.Informer().GetIndexer(),
		expect:    control.NewExpectations(env.Clock),
		failed:    map[backoffKey]failure{},
	}
	c.Loop = control.NewLoop(env, "daemonset", env.Traced("DaemonSet", sets.Informer(), c.sync))
	if err := control.AddOwnerIndex(pods.Informer(), revisions.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(sets.Informer(), control.Handlers(
		func(ds *appsv1.DaemonSet) { c.AddObject(ds) },
		func(old, cur *appsv1.DaemonSet) {
			if old.UID != cur.UID {
				c.expect.Forget(key(old))
			}
			c.AddObject(cur)
		},
		func(ds *appsv1.DaemonSet) {
			c.expect.Forget(key(ds))
			c.AddObject(ds)
		},
	)); err != nil {
		return nil, err
	}
	if err := c.Watch(pods.Informer(), control.Handlers(c.podAdded, c.podChanged, c.podDeleted)); err != nil {
		return nil, err
	}
	owned := func(r *appsv1.ControllerRevision) {
		if ds := c.owner(r.Namespace, metav1.GetControllerOfNoCopy(r)); ds != nil {
			c.AddObject(ds)
		}
	}
	if err := c.Watch(revisions.Informer(), control.AnyEvent(owned)); err != nil {
		return nil, err
	}
	return c, c.Watch(nodes.Informer(), control.Handlers(
		func(n *corev1.Node) { c.nodeChanged(nil, n) },
		func(old, cur *corev1.Node) {
			if !equality.Semantic.DeepEqual(old.Labels, cur.Labels) || !equality.Semantic.DeepEqual(old.Spec.Taints, cur.Spec.Taints) {
				c.nodeChanged(old, cur)
			}
		},
		func(n *corev1.Node) {
			c.forgetFailures(func(p backoffKey) bool { return p.node == n.Name })
			c.nodeChanged(n, nil)
		},
	))
}

// key returns the key of a DaemonSet in the queue: its namespace/name.
func key(ds *appsv1.DaemonSet) string { return ds.Namespace + "/" + ds.Name }

// owner returns the DaemonSet to which a controller reference refers, or nil.
func (c *Controller) owner(namespace string, ref *metav1.OwnerReference) *appsv1.DaemonSet {
	return control.Owner(ref, Kind, c.sets.DaemonSets(namespace).Get)
}

// nodeChanged enqueues the DaemonSets that should start or stop a pod because a node was added (old is nil) or
// changed. If the node was deleted (cur is nil), it enqueues all DaemonSets.
func (c *Controller) nodeChanged(old, cur *corev1.Node) {
	all, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, ds := range all {
		var a, b fit
		if old != nil {
			a = fits(ds, old)
		}
		if cur != nil {
			b = fits(ds, cur)
		}
		if a != b || cur == nil {
			c.AddObject(ds)
		}
	}
}

// podAdded enqueues the DaemonSet of a new pod and records that a creation by this controller was observed (see
// control.Expectations). If p has no controller, it enqueues the DaemonSets that may adopt p. It treats a pod with a
// deletion timestamp as deleted.
func (c *Controller) podAdded(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		c.podDeleted(p)
		return
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		if ds := c.owner(p.Namespace, ref); ds != nil {
			c.expect.Created(key(ds))
			c.AddObject(ds)
		}
		return
	}
	c.addMatching(p)
}

// podChanged enqueues the DaemonSets that own a pod before and after an update. If the pod has no owner, and has lost
// it or changed its labels with this update, it enqueues the DaemonSets that may adopt the pod.
func (c *Controller) podChanged(old, cur *corev1.Pod) {
	if cur.DeletionTimestamp != nil {
		c.podDeleted(cur)
		return
	}
	was, is := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(cur)
	if was != nil && (is == nil || is.UID != was.UID) {
		if ds := c.owner(old.Namespace, was); ds != nil {
			c.AddObject(ds)
		}
	}
	if is != nil {
		if ds := c.owner(cur.Namespace, is); ds != nil {
			c.AddObject(ds)
		}
	} else if was != nil || !labels.Equals(old.Labels, cur.Labels) {
		c.addMatching(cur)
	}
}

// podDeleted enqueues the DaemonSet of p and records that a deletion by this controller was observed (see
// control.Expectations). It is also called when p gets a deletion timestamp.
func (c *Controller) podDeleted(p *corev1.Pod) {
	if ds := c.owner(p.Namespace, metav1.GetControllerOfNoCopy(p)); ds != nil {
		c.expect.Deleted(key(ds), control.ID(p))
		c.AddObject(ds)
	}
}

// addMatching enqueues the DaemonSets that may adopt a pod without a controller.
func (c *Controller) addMatching(p *corev1.Pod) {
	all, err := c.sets.DaemonSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, ds := range all {
		if control.Selects(ds.Spec.Selector, p.Labels) {
			c.AddObject(ds)
		}
	}
}

// sync reconciles the pods and the status of the DaemonSet with the key k. It does nothing while the DaemonSet is
// being deleted, or if its selector is empty or invalid. While the cache lacks pods that the last sync created, or
// still has those that it deleted, sync only updates the status.
func (c *Controller) sync(ctx context.Context, k string) error {
	namespace, name := control.SplitKey(k)
	shared, err := c.sets.DaemonSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.expect.Forget(k)
		c.forgetFailures(func(p backoffKey) bool { return p.set == k })
		return nil
	}
	if err != nil {
		return err
	}
	ds := shared.DeepCopy()
	if equality.Semantic.DeepEqual(ds.Spec.Selector, &metav1.LabelSelector{}) {
		c.env.Events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	}
	if ds.DeletionTimestamp != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		c.env.Log.ErrorContext(ctx, "DaemonSet has an invalid selector, so its pods are not created, updated or deleted: recreate it with a valid selector", "daemonset", k, "err", err)
		return nil
	}
	h, err := c.history(ctx, ds, selector)
	if err != nil {
		return err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	var workErr error
	if left := c.expect.Left(k); left > 0 {
		c.AddAfter(k, left)
	} else {
		workErr = c.syncPods(ctx, ds, selector, nodes, h)
	}
	pods, err := c.claim(ctx, ds, selector)
	if err != nil {
		return errors.Join(workErr, err)
	}
	if err := c.updateStatus(ctx, ds, nodes, pods, h.hash); err != nil {
		return errors.Join(workErr, fmt.Errorf("updating status: %w", err))
	}
	if next, ok := control.NextAvailable(pods, ds.Spec.MinReadySeconds, c.env.Clock.Now()); ok {
		c.AddAfter(k, next)
	}
	return workErr
}

// syncPods creates missing pods and deletes excess pods. When there are none, it replaces pods with a former template
// according to the update strategy, and deletes old revisions.
func (c *Controller) syncPods(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector, nodes []*corev1.Node, h history) error {
	pods, err := c.claim(ctx, ds, selector)
	if err != nil {
		return err
	}
	plan := c.planPlacement(ds, nodes, byNode(pods), h.hash)
	if len(plan.create)+len(plan.delete) > 0 {
		if err := c.apply(ctx, ds, plan, h.hash); err != nil {
			return err
		}
	}
	if !c.expect.Satisfied(key(ds)) {
		return nil
	}
	if ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		plan, err := c.roll(ds, nodes, byNode(pods), h.hash)
		if err != nil {
			return err
		}
		if len(plan.create)+len(plan.delete) > 0 {
			if err := c.apply(ctx, ds, plan, h.hash); err != nil {
				return err
			}
		}
	}
	return c.prune(ctx, ds, h, pods)
}

// claim adopts the pods without a controller that the DaemonSet selects, releases those that it no longer selects, and
// returns those that it controls.
func (c *Controller) claim(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector) ([]*corev1.Pod, error) {
	pods, err := control.Owned[*corev1.Pod](c.podIndex, ds, true)
	if err != nil {
		return nil, err
	}
	claimer := control.Claimer[*corev1.Pod]{
		Owner: ds, Kind: Kind, Selector: selector, Patch: c.pods.Patch, CanAdopt: c.canAdopt(ds),
	}
	return claimer.Claim(ctx, pods)
}

// canAdopt returns a function that checks with the API server that ds still exists and is not being deleted, before it
// adopts an object.
func (c *Controller) canAdopt(ds *appsv1.DaemonSet) func(context.Context) error {
	return control.CanAdopt(ds, func(ctx context.Context) (*appsv1.DaemonSet, error) {
		return c.env.Kube.AppsV1().DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	})
}

// apply creates a pod on each node in p.create and deletes the pods in p.delete, at most burst each. hash is the hash
// of the current template, which becomes a label of new pods.
func (c *Controller) apply(ctx context.Context, ds *appsv1.DaemonSet, p plan, hash string) error {
	create, victims := p.create[:min(len(p.create), burst)], p.delete[:min(len(p.delete), burst)]
	ids := make([]string, len(victims))
	for i, v := range victims {
		ids[i] = control.ID(v)
	}
	k := key(ds)
	c.expect.Expect(k, len(create), ids...)
	template := podTemplate(ds, hash)
	ref := metav1.NewControllerRef(ds, Kind)
	names := make(chan string, len(create))
	for _, n := range create {
		names <- n
	}
	done, err := control.SlowStart(len(create), func() error {
		node := <-names
		pod := control.PodFrom(template, ref)
		pod.GenerateName = control.PodPrefix(ds.Name)
		pinTo(pod, node)
		_, err := c.pods.Create(ctx, ds.Namespace, pod, ds)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	})
	for range len(create) - done {
		c.expect.Created(k)
	}
	errs := make([]error, len(victims)+1)
	errs[len(victims)] = err
	var wg sync.WaitGroup
	for i, v := range victims {
		wg.Go(func() {
			if err := c.pods.Delete(ctx, v, ds); err != nil {
				c.expect.Deleted(k, ids[i])
				if !apierrors.IsNotFound(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// updateStatus computes the status of the DaemonSet and writes it if it has changed. It is no error if the DaemonSet
// was deleted.
func (c *Controller) updateStatus(ctx context.Context, ds *appsv1.DaemonSet, nodes []*corev1.Node, pods []*corev1.Pod, hash string) error {
	s := status(ds, nodes, byNode(pods), hash, c.env.Clock.Now())
	if equality.Semantic.DeepEqual(ds.Status, s) {
		return nil
	}
	next := ds.DeepCopy()
	next.Status = s
	_, err := c.env.Kube.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// backOff returns how long a failed pod on a node must be kept before it is replaced. If the delay is over, it returns
// zero, and the next failure on the node is delayed twice as long.
func (c *Controller) backOff(ds *appsv1.DaemonSet, node string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, now := backoffKey{key(ds), ds.UID, node}, c.env.Clock.Now()
	f, ok := c.failed[k]
	if ok && now.Sub(f.since) > 2*lastBackoff {
		ok = false
	}
	if ok {
		if left := f.wait - now.Sub(f.since); left > 0 {
			return left
		}
	}
	next := failure{wait: firstBackoff, since: now}
	if ok {
		next.wait = min(2*f.wait, lastBackoff)
	}
	c.failed[k] = next
	return 0
}

// forgetFailures discards the back-off of DaemonSets or nodes that were deleted: the entries for which gone returns
// true.
func (c *Controller) forgetFailures(gone func(backoffKey) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.failed, func(p backoffKey, _ failure) bool { return gone(p) })
}
