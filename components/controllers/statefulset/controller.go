// Package statefulset maintains the pods of StatefulSets, which have stable names and storage. It
// creates, deletes and updates them in order.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/revision"
)

// Kind is StatefulSet, the kind in the owner references of the pods and revisions that the controller creates.
var Kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// hashLabel is the label of a ControllerRevision with the hash in its name.
const hashLabel = "controller.kubernetes.io/hash"

// Controller reconciles StatefulSets. Each sync handles one StatefulSet. Use New to create it.
type Controller struct {
	*control.Loop
	env       control.Env
	pods      control.PodControl
	sets      appslisters.StatefulSetLister
	claims    corelisters.PersistentVolumeClaimLister
	podIndex  cache.Indexer
	revisions cache.Indexer
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	sets, pods := env.Informers.Apps().V1().StatefulSets(), env.Informers.Core().V1().Pods()
	claims, revisions := env.Informers.Core().V1().PersistentVolumeClaims(), env.Informers.Apps().V1().ControllerRevisions()
	c := &Controller{
		env:       env,
		pods:      control.PodControl{Kube: env.Kube, Events: env.Events},
		sets:      sets.Lister(),
		claims:    claims.Lister(),
		podIndex:  pods.Informer().GetIndexer(),
		revisions: revisions.Informer().GetIndexer(),
	}
	c.Loop = control.NewLoop(env, "statefulset", env.Traced("StatefulSet", sets.Informer(), c.sync))
	if err := control.AddOwnerIndex(pods.Informer(), revisions.Informer()); err != nil {
		return nil, err
	}
	c.Await(revisions.Informer())
	// The creation of a pod may be waiting for the deletion of a former pod's claim.
	if err := c.Watch(claims.Informer(), control.Handlers(nil, nil, c.claimGone)); err != nil {
		return nil, err
	}
	if err := c.Watch(sets.Informer(), control.AnyEvent(func(s *appsv1.StatefulSet) { c.AddObject(s) })); err != nil {
		return nil, err
	}
	changed := func(p *corev1.Pod) {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
			c.addOwner(p.Namespace, ref)
			return
		}
		c.addMatching(p)
	}
	return c, c.Watch(pods.Informer(), control.Handlers(changed, func(old, cur *corev1.Pod) {
		if ref := metav1.GetControllerOfNoCopy(old); ref != nil {
			c.addOwner(old.Namespace, ref)
		}
		changed(cur)
	}, changed))
}

// claimGone enqueues the StatefulSets to which a deleted claim may have belonged, because the creation of a pod may be
// waiting for the deletion.
func (c *Controller) claimGone(claim *corev1.PersistentVolumeClaim) {
	all, err := c.sets.StatefulSets(claim.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		for i := range s.Spec.VolumeClaimTemplates {
			if strings.HasPrefix(claim.Name, s.Spec.VolumeClaimTemplates[i].Name+"-"+s.Name+"-") {
				c.AddObject(s)
				break
			}
		}
	}
}

// addOwner enqueues the StatefulSet to which a pod's controller reference refers, if it exists.
func (c *Controller) addOwner(namespace string, ref *metav1.OwnerReference) {
	if s := control.Owner(ref, Kind, c.sets.StatefulSets(namespace).Get); s != nil {
		c.AddObject(s)
	}
}

// addMatching enqueues the StatefulSets that may adopt a pod without a controller.
func (c *Controller) addMatching(p *corev1.Pod) {
	all, err := c.sets.StatefulSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if control.Selects(s.Spec.Selector, p.Labels) {
			c.AddObject(s)
		}
	}
}

// canAdopt returns a function that checks with the API server that set still exists and is not being deleted, before it
// adopts an object.
func (c *Controller) canAdopt(set *appsv1.StatefulSet) func(context.Context) error {
	return control.CanAdopt(set, func(ctx context.Context) (*appsv1.StatefulSet, error) {
		return c.env.Kube.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	})
}

// sync makes one step of the reconciliation of the StatefulSet with this key, and updates its status. Changes of the
// pods trigger the next sync.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	shared, err := c.sets.StatefulSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	set := shared.DeepCopy()
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		c.env.Log.ErrorContext(ctx, "StatefulSet has an invalid selector, so its pods are not created, updated or deleted: recreate it with a valid selector", "statefulset", key, "err", err)
		return nil
	}
	candidates, err := control.Owned[*corev1.Pod](c.podIndex, set, true)
	if err != nil {
		return err
	}
	claimer := control.Claimer[*corev1.Pod]{
		Owner: set, Kind: Kind, Selector: selector, Patch: c.pods.Patch, CanAdopt: c.canAdopt(set),
		Match: func(p *corev1.Pod) bool { _, ok := ordinalOf(set, p); return ok },
	}
	pods, err := claimer.Claim(ctx, candidates)
	if err != nil {
		return err
	}
	u := &update{Controller: c, set: set, pods: pods}
	if err := u.findRevisions(ctx, selector); err != nil {
		return err
	}
	workErr := u.syncPods(ctx)
	s := u.status()
	if err := c.writeStatus(ctx, set, s); err != nil {
		return errors.Join(workErr, fmt.Errorf("updating status: %w", err))
	}
	if workErr != nil {
		return workErr
	}
	if next, ok := control.NextAvailable(pods, set.Spec.MinReadySeconds, c.env.Clock.Now()); ok {
		c.AddAfter(key, next)
	}
	return u.prune(ctx)
}

// writeStatus writes the status s if it differs from that of set. It is not an error if the StatefulSet was deleted.
func (c *Controller) writeStatus(ctx context.Context, set *appsv1.StatefulSet, s appsv1.StatefulSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, s) {
		return nil
	}
	next := set.DeepCopy()
	next.Status = s
	_, err := c.env.Kube.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// create creates the claims of a pod that do not exist, and then the pod, and corrects the owner references of the
// claims. It emits events with the results on the StatefulSet. If the pod already exists, it returns the AlreadyExists
// error without an event.
func (c *Controller) create(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) error {
	if err := c.ensureClaims(ctx, set, p, ordinal); err != nil {
		c.record(set, p, "create", err)
		return err
	}
	_, err := c.env.Kube.CoreV1().Pods(set.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return err // the pod's event triggers another sync
	}
	if claimErr := c.updateClaimOwners(ctx, set, p); claimErr != nil {
		c.record(set, p, "update", claimErr)
		return errors.Join(err, claimErr)
	}
	c.record(set, p, "create", err)
	return err
}

// delete deletes a pod, with an event on the StatefulSet. It is not an error if the pod does not exist.
func (c *Controller) delete(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod) error {
	err := c.env.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	c.record(set, p, "delete", err)
	return err
}

// verbs are the event reasons for success and failure of an operation, and its name in messages.
var verbs = map[string][3]string{
	"create": {control.SuccessfulCreate, control.FailedCreate, "Create"},
	"update": {"SuccessfulUpdate", "FailedUpdate", "Update"},
	"delete": {control.SuccessfulDelete, control.FailedDelete, "Delete"},
}

// record emits an event on the StatefulSet about an operation on a pod, which failed if err is not nil. verb is a key
// of verbs.
func (c *Controller) record(set *appsv1.StatefulSet, p *corev1.Pod, verb string, err error) {
	v := verbs[verb]
	if err == nil {
		c.env.Events.Eventf(set, corev1.EventTypeNormal, v[0], "%s Pod %s in StatefulSet %s successful", v[2], p.Name, set.Name)
		return
	}
	c.env.Events.Eventf(set, corev1.EventTypeWarning, v[1], "%s Pod %s in StatefulSet %s failed error: %s", v[2], p.Name, set.Name, err)
}

// prune deletes the oldest revisions that are not in use, except for the newest spec.revisionHistoryLimit (default 10) of
// these. The current revision, the update revision and those of existing pods are in use.
func (u *update) prune(ctx context.Context) error {
	limit := 10
	if u.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*u.set.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{u.current.Name: true, u.next.Name: true}
	for _, p := range u.pods {
		live[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	return revision.Prune(ctx, u.env.Kube, u.all, func(r *appsv1.ControllerRevision) bool { return live[r.Name] }, limit)
}
