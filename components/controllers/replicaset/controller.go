// Package replicaset maintains the desired number of pods of ReplicaSets.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// burst is the maximum number of pods of one owner that one sync creates or deletes.
const burst = 500

// Kind is ReplicaSet, the kind in the owner references of the pods that the controller creates.
var Kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Flavor adapts the Controller to a kind of workload: ReplicaSets, or ReplicationControllers, which are converted to
// ReplicaSets. The fields call an object of this kind an owner, because it owns pods.
type Flavor struct {
	// Name is the controller's name in logs.
	Name string
	// Kind is the kind of the owners in owner references.
	Kind schema.GroupVersionKind
	// Informer is the informer of the owners.
	Informer cache.SharedIndexInformer
	// Convert converts an object from Informer to a ReplicaSet, which shares memory with it. It
	// returns nil if the object is of another type.
	Convert func(obj any) *appsv1.ReplicaSet
	// Live gets an owner from the API server.
	Live func(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error)
	// UpdateStatus updates the status of an owner and returns the result.
	UpdateStatus func(ctx context.Context, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error)
	// Object returns the object that events about an owner refer to.
	Object func(rs *appsv1.ReplicaSet) runtime.Object
	// Siblings is true if ReplicaSets may share a Deployment. Then the pods of all of them on a
	// node count for the order of deletion.
	Siblings bool
}

// Controller creates and deletes pods until each ReplicaSet, or each ReplicationController, has the desired number.
type Controller struct {
	*control.Loop
	flavor   Flavor
	env      control.Env
	pods     control.PodControl
	podLists corelisters.PodLister
	podIndex cache.Indexer
	expect   *control.Expectations
}

// New returns a Controller of ReplicaSets that uses the API client, the informers and the event recorder in env. The
// caller then starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	informer := env.Informers.Apps().V1().ReplicaSets()
	return NewFlavor(env, Flavor{
		Name:     "replicaset",
		Kind:     Kind,
		Informer: informer.Informer(),
		Convert: func(obj any) *appsv1.ReplicaSet {
			rs, _ := control.Object[*appsv1.ReplicaSet](obj)
			return rs
		},
		Live: func(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
			return env.Kube.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		UpdateStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
			return env.Kube.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
		},
		Object:   func(rs *appsv1.ReplicaSet) runtime.Object { return rs },
		Siblings: true,
	})
}

// NewFlavor returns a controller of the kind of object that f describes. It adds an index to the informers of pods and
// owners. The caller starts the informers and calls Run.
func NewFlavor(env control.Env, f Flavor) (*Controller, error) {
	env = env.Defaulted()
	pods := env.Informers.Core().V1().Pods()
	c := &Controller{
		flavor:   f,
		env:      env,
		pods:     control.PodControl{Kube: env.Kube, Events: env.Events},
		podLists: pods.Lister(),
		podIndex: pods.Informer().GetIndexer(),
		expect:   control.NewExpectations(env.Clock),
	}
	c.Loop = control.NewLoop(env, f.Name, env.Traced(f.Kind.Kind, f.Informer, c.sync))
	if err := control.AddOwnerIndex(pods.Informer(), f.Informer); err != nil {
		return nil, err
	}
	if err := c.Watch(f.Informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.AddObject,
		UpdateFunc: c.ownerChanged,
		DeleteFunc: func(obj any) {
			if rs := f.Convert(obj); rs != nil {
				c.expect.Forget(key(rs))
				c.Add(key(rs))
			}
		},
	}); err != nil {
		return nil, err
	}
	return c, c.Watch(pods.Informer(), control.Handlers(c.podAdded, c.podChanged, c.podDeleted))
}

// key returns the key of an owner in the work queue: its namespace/name.
func key(rs *appsv1.ReplicaSet) string { return rs.Namespace + "/" + rs.Name }

// ownerChanged is the handler of updates: it enqueues the owner b. If b has another UID than a, its previous version,
// the owner was deleted and recreated, so the expected writes for a are discarded.
func (c *Controller) ownerChanged(a, b any) {
	old, cur := c.flavor.Convert(a), c.flavor.Convert(b)
	if old == nil || cur == nil {
		return
	}
	// The owner was deleted and recreated between two events.
	if old.UID != cur.UID {
		c.expect.Forget(key(old))
	}
	c.Add(key(cur))
}

// owner returns the owner that ref refers to, from the cache. It returns nil if ref is of another kind, or the owner
// does not exist or has another UID.
func (c *Controller) owner(namespace string, ref *metav1.OwnerReference) *appsv1.ReplicaSet {
	if ref.Kind != c.flavor.Kind.Kind {
		return nil
	}
	rs := c.get(namespace + "/" + ref.Name)
	if rs == nil || rs.UID != ref.UID {
		return nil
	}
	return rs
}

// get returns the owner with the key (namespace/name) from the cache, or nil if it does not exist.
func (c *Controller) get(key string) *appsv1.ReplicaSet {
	obj, ok, err := c.flavor.Informer.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	return c.flavor.Convert(obj)
}

// podAdded enqueues the owner of a new pod and records that a creation by this controller was observed (see
// control.Expectations). If p has no owner, it enqueues those that may adopt p.
func (c *Controller) podAdded(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		// The pod was already being deleted when it was first observed, so it is not an expected
		// creation.
		c.podDeleted(p)
		return
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		if rs := c.owner(p.Namespace, ref); rs != nil {
			c.expect.Created(key(rs))
			c.Add(key(rs))
		}
		return
	}
	c.addMatching(p)
}

// podChanged enqueues the owners of a pod before and after an update. If the pod has no owner and its labels changed
// or it lost its owner, it enqueues those that may adopt the pod. A pod that is being deleted is handled like a
// deleted one.
func (c *Controller) podChanged(old, cur *corev1.Pod) {
	labelsChanged := !labels.Equals(old.Labels, cur.Labels)
	if cur.DeletionTimestamp != nil {
		// The replacement need not wait until the kubelet has terminated the pod.
		c.podDeleted(cur)
		if labelsChanged {
			c.podDeleted(old)
		}
		return
	}
	was, is := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(cur)
	if was != nil && (is == nil || is.UID != was.UID) {
		if rs := c.owner(old.Namespace, was); rs != nil {
			c.Add(key(rs))
		}
	}
	switch {
	case is != nil:
		if rs := c.owner(cur.Namespace, is); rs != nil {
			c.Add(key(rs))
		}
	case labelsChanged || was != nil:
		c.addMatching(cur)
	}
}

// podDeleted enqueues the owner of p and records that a deletion by this controller was observed (see
// control.Expectations). It is also called when p gets a deletion timestamp.
func (c *Controller) podDeleted(p *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return
	}
	if rs := c.owner(p.Namespace, ref); rs != nil {
		c.expect.Deleted(key(rs), control.ID(p))
		c.Add(key(rs))
	}
}

// addMatching enqueues every owner that might adopt an orphaned pod.
func (c *Controller) addMatching(p *corev1.Pod) {
	objs, err := c.flavor.Informer.GetIndexer().ByIndex(cache.NamespaceIndex, p.Namespace)
	if err != nil {
		return
	}
	for _, obj := range objs {
		rs := c.flavor.Convert(obj)
		if rs == nil {
			continue
		}
		if control.Selects(rs.Spec.Selector, p.Labels) {
			c.Add(key(rs))
		}
	}
}

// sync adopts and releases pods of the owner with the key, creates or deletes pods, and updates the status. It creates
// and deletes none while the cache does not contain the effects of the last sync. k is the key.
func (c *Controller) sync(ctx context.Context, k string) error {
	rs := c.get(k)
	if rs == nil {
		c.expect.Forget(k)
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		c.env.Log.ErrorContext(ctx, "ReplicaSet or ReplicationController has an invalid selector, so its pods are not created or deleted: recreate it with a valid selector", "controller", c.flavor.Name, "key", k, "err", err)
		return nil
	}
	// Check the expectations before reading the pods: events in between only make the pods newer.
	left := c.expect.Left(k)
	if left > 0 {
		c.AddAfter(k, left)
	}
	active, terminating, err := c.claim(ctx, rs, selector)
	if err != nil {
		return err
	}
	var manageErr error
	if left == 0 && rs.DeletionTimestamp == nil {
		manageErr = c.manage(ctx, rs, active)
	}
	now := c.env.Clock.Now()
	status := statusOf(rs, active, terminating, manageErr, now)
	if err := c.updateStatus(ctx, rs, status); err != nil {
		return errors.Join(manageErr, err)
	}
	if manageErr != nil {
		return manageErr
	}
	if next, ok := control.NextAvailable(active, rs.Spec.MinReadySeconds, now); ok {
		c.AddAfter(k, next)
	}
	return nil
}

// claim adopts the active pods that rs selects, releases those that it no longer selects, and returns the active pods
// of rs. It also returns the number of pods of rs that are being deleted; neither these nor terminated pods are adopted
// or released.
func (c *Controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector) (active []*corev1.Pod, terminating int32, err error) {
	pods, err := control.Owned[*corev1.Pod](c.podIndex, rs, true)
	if err != nil {
		return nil, 0, err
	}
	for _, p := range pods {
		switch {
		case control.IsActive(p):
			active = append(active, p)
		case control.IsTerminating(p) && metav1.IsControlledBy(p, rs) && selector.Matches(labels.Set(p.Labels)):
			terminating++
		}
	}
	claimer := control.Claimer[*corev1.Pod]{
		Owner:    rs,
		Kind:     c.flavor.Kind,
		Selector: selector,
		CanAdopt: control.CanAdopt(rs, func(ctx context.Context) (*appsv1.ReplicaSet, error) {
			return c.flavor.Live(ctx, rs.Namespace, rs.Name)
		}),
		Patch: c.pods.Patch,
	}
	active, err = claimer.Claim(ctx, active)
	return active, terminating, err
}

// manage creates or deletes pods, at most burst, so that rs has the desired number. active are its current pods.
func (c *Controller) manage(ctx context.Context, rs *appsv1.ReplicaSet, active []*corev1.Pod) error {
	want := 1
	if rs.Spec.Replicas != nil {
		want = int(*rs.Spec.Replicas)
	}
	switch diff := len(active) - want; {
	case diff < 0:
		return c.create(ctx, rs, min(-diff, burst))
	case diff > 0:
		return c.delete(ctx, rs, active, min(diff, burst))
	}
	return nil
}

// create creates n pods for rs, first one, then increasingly many at a time, until a creation fails. It returns the
// first error. It is not an error if the namespace is being deleted.
func (c *Controller) create(ctx context.Context, rs *appsv1.ReplicaSet, n int) error {
	k, object := key(rs), c.flavor.Object(rs)
	c.expect.Expect(k, n)
	ref := metav1.NewControllerRef(rs, c.flavor.Kind)
	prefix := control.PodPrefix(rs.Name)
	template := rs.Spec.Template
	done, err := control.SlowStart(n, func() error {
		pod := control.PodFrom(&template, ref)
		pod.GenerateName = prefix
		_, err := c.pods.Create(ctx, rs.Namespace, pod, object)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			// Retrying does not help: the namespace is being deleted together with the owner.
			return nil
		}
		return err
	})
	// Remove the expectations of creations that failed or were not tried.
	for range n - done {
		c.expect.Created(k)
	}
	return err
}

// delete deletes n of the active pods of rs concurrently, those whose loss matters least first. It returns an error if
// a deletion fails.
func (c *Controller) delete(ctx context.Context, rs *appsv1.ReplicaSet, active []*corev1.Pod, n int) error {
	victims := active
	if n < len(active) {
		victims = append([]*corev1.Pod(nil), active...)
		sort.Sort(control.Victims{Pods: victims, Rank: c.rank(rs, victims), Now: c.env.Clock.Now()})
		victims = victims[:n]
	}
	k, object := key(rs), c.flavor.Object(rs)
	ids := make([]string, len(victims))
	for i, p := range victims {
		ids[i] = control.ID(p)
	}
	c.expect.Expect(k, 0, ids...)
	errs := make([]error, len(victims))
	var wg sync.WaitGroup
	for i, p := range victims {
		wg.Go(func() {
			if err := c.pods.Delete(ctx, p, object); err != nil {
				c.expect.Deleted(k, ids[i])
				if !apierrors.IsNotFound(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rank returns, for each of pods, how many active pods of rs and its siblings are on its node. Among pods of the same
// phase, readiness and deletion cost, those with a higher rank are deleted first.
func (c *Controller) rank(rs *appsv1.ReplicaSet, pods []*corev1.Pod) []int {
	on := map[string]int{}
	for _, sibling := range c.siblings(rs) {
		related, err := control.Owned[*corev1.Pod](c.podIndex, sibling, false)
		if err != nil {
			continue
		}
		for _, p := range related {
			if control.IsActive(p) {
				on[p.Spec.NodeName]++
			}
		}
	}
	ranks := make([]int, len(pods))
	for i, p := range pods {
		ranks[i] = on[p.Spec.NodeName]
	}
	return ranks
}

// siblings returns the ReplicaSets with the same controller as rs, including rs. It returns only rs if rs has no
// controller.
func (c *Controller) siblings(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil || !c.flavor.Siblings {
		return []*appsv1.ReplicaSet{rs}
	}
	owner := &metav1.ObjectMeta{Namespace: rs.Namespace, UID: ref.UID}
	all, err := control.Owned[*appsv1.ReplicaSet](c.flavor.Informer.GetIndexer(), owner, false)
	if err != nil || len(all) == 0 {
		return []*appsv1.ReplicaSet{rs}
	}
	return all
}

// updateStatus writes status to rs, unless rs already has it. It retries once after a conflict.
func (c *Controller) updateStatus(ctx context.Context, rs *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if sameStatus(rs.Status, status, c.flavor.Siblings) && rs.Generation == rs.Status.ObservedGeneration {
		return nil
	}
	status.ObservedGeneration = rs.Generation
	next := rs.DeepCopy()
	next.Status = status
	_, err := c.flavor.UpdateStatus(ctx, next)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("updating status: %w", err)
	}
	// Retry once with the latest object. The computed status remains valid.
	fresh, getErr := c.flavor.Live(ctx, rs.Namespace, rs.Name)
	if apierrors.IsNotFound(getErr) {
		return nil
	}
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	fresh = fresh.DeepCopy()
	fresh.Status = status
	_, err = c.flavor.UpdateStatus(ctx, fresh)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
