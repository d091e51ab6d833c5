// Package job runs pods until the specified number of them has succeeded.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/job/
//
// Each pod has a finalizer until its termination is counted. This happens in three steps with
// separate writes, so that a crash in between neither loses nor duplicates a count: the pod's UID
// is added to the status, the finalizer is removed, and the UID in the status is replaced by an
// incremented counter.
package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// Kind is Job, the kind in the owner references of the pods that the controller creates.
var Kind = batchv1.SchemeGroupVersion.WithKind("Job")

const (
	// name is the spec.managedBy value of this controller.
	name = "kubernetes.io/job-controller"
	// maxCreate is the maximum number of pods that one sync creates or discards. maxCount is the maximum number of
	// terminated pods that one sync counts.
	maxCreate = 500
	maxCount  = 500
)

// Controller reconciles Jobs. Each sync handles one Job, or a pod whose Job was deleted. Use New to create it.
type Controller struct {
	*control.Loop
	env      control.Env
	pods     control.PodControl
	jobs     batchlisters.JobLister
	podIndex cache.Indexer
	expect   *control.Expectations
	metrics  *metrics

	mu     sync.Mutex
	failed map[string]failures // by Job; guarded by mu
	// released are the pods, by Job, whose finalizer was removed but is still present in the cache;
	// guarded by mu.
	released map[string]map[types.UID]bool
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	jobs, pods := env.Informers.Batch().V1().Jobs(), env.Informers.Core().V1().Pods()
	c := &Controller{
		env:      env,
		pods:     control.PodControl{Kube: env.Kube, Events: env.Events},
		jobs:     jobs.Lister(),
		podIndex: pods.Informer().GetIndexer(),
		expect:   control.NewExpectations(env.Clock),
		failed:   map[string]failures{},
		released: map[string]map[types.UID]bool{},
		metrics:  newMetrics(),
	}
	if err := env.Register(c.metrics.collectors()...); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "job", env.Traced("Job", jobs.Informer(), c.sync))
	if err := control.AddOwnerIndex(pods.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(jobs.Informer(), control.Handlers(
		c.jobAdded,
		func(old, cur *batchv1.Job) {
			if old.UID != cur.UID {
				c.forget(key(old))
			}
			c.AddObject(cur)
		},
		func(j *batchv1.Job) {
			c.forget(key(j))
			c.AddObject(j)
			// No other controller removes the finalizers that block the deletion of its pods.
			c.enqueueOrphans(j)
		},
	)); err != nil {
		return nil, err
	}
	return c, c.Watch(pods.Informer(), control.Handlers(c.podAdded, c.podChanged, c.podDeleted))
}

// key returns the key of a Job in the queue: its namespace/name.
func key(j *batchv1.Job) string { return j.Namespace + "/" + j.Name }

// jobAdded enqueues j, and counts it in the metrics if another controller manages it.
func (c *Controller) jobAdded(j *batchv1.Job) {
	if m := managedElsewhere(j); m != "" {
		c.metrics.others.WithLabelValues(m).Inc()
	}
	c.AddObject(j)
}

// forget discards the back-off, the expected writes and the released pods of the Job k, which was deleted.
func (c *Controller) forget(k string) {
	c.expect.Forget(k)
	c.mu.Lock()
	delete(c.failed, k)
	delete(c.released, k)
	c.mu.Unlock()
}

// uncounted reports whether the termination of a pod of this Job may still have to be counted: the pod has the
// finalizer, and this controller has not removed it already.
func (s *state) uncounted(p *corev1.Pod) bool {
	if !tracked(p) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.released[key(s.job)][p.UID]
}

// finalizerRemoved is called when the cache contains a pod of the Job j without the finalizer, or when the pod was
// deleted. It removes the pod from c.released, the pods whose finalizer this controller has removed but whose cached
// object may still have it.
func (c *Controller) finalizerRemoved(p *corev1.Pod, j *batchv1.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.released[key(j)]; m != nil {
		delete(m, p.UID)
	}
}

// podPrefixKey is the prefix of the keys of pods whose Job was deleted.
const podPrefixKey = "/pod/"

// enqueueOrphans enqueues the pods of a deleted Job that have the finalizer, so that it is removed.
func (c *Controller) enqueueOrphans(j *batchv1.Job) {
	pods, err := control.Owned[*corev1.Pod](c.podIndex, j, false)
	if err != nil {
		return
	}
	for _, p := range pods {
		if tracked(p) {
			c.Add(podPrefixKey + p.Namespace + "/" + p.Name)
		}
	}
}

// tracked reports whether a pod has the finalizer with which this controller makes sure that its termination is
// counted.
func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// owner returns the Job to which a pod's controller reference refers, or nil.
func (c *Controller) owner(namespace string, ref *metav1.OwnerReference) *batchv1.Job {
	return control.Owner(ref, Kind, c.jobs.Jobs(namespace).Get)
}

// podAdded is the handler of new pods: it updates the metrics of the finalizer and calls podCreated.
func (c *Controller) podAdded(p *corev1.Pod) {
	c.metrics.seen(nil, p)
	c.podCreated(p)
}

// podCreated enqueues the Job of a new pod, and records that a creation by this controller was observed (see
// control.Expectations). A pod without a Job is passed to handleOrphan, and one with a deletion timestamp to podGone.
func (c *Controller) podCreated(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		c.podGone(p)
		return
	}
	ref := metav1.GetControllerOfNoCopy(p)
	if j := c.owner(p.Namespace, ref); j != nil {
		c.expect.Created(key(j))
		c.AddObject(j)
		return
	}
	c.handleOrphan(p, ref)
}

// handleOrphan handles a pod whose Job does not exist, or that has no controller: it enqueues the Jobs that may adopt
// the pod, and the pod itself if its finalizer must be removed. ref is the pod's controller reference, or nil.
func (c *Controller) handleOrphan(p *corev1.Pod, ref *metav1.OwnerReference) {
	if ref == nil {
		all, err := c.jobs.Jobs(p.Namespace).List(labels.Everything())
		if err != nil {
			return
		}
		for _, j := range all {
			if control.Selects(j.Spec.Selector, p.Labels) {
				c.AddObject(j)
			}
		}
	}
	if tracked(p) {
		c.Add(podPrefixKey + p.Namespace + "/" + p.Name)
	}
}

// podChanged enqueues the Jobs of a pod before and after an update, and records expected deletions and removals of the
// finalizer. If the pod has no Job, handleOrphan handles it.
func (c *Controller) podChanged(old, cur *corev1.Pod) {
	c.metrics.seen(old, cur)
	was, is := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(cur)
	if cur.DeletionTimestamp != nil {
		if j := c.owner(cur.Namespace, is); j != nil {
			c.expect.Deleted(key(j), control.ID(cur))
		}
	}
	if was != nil && (is == nil || is.UID != was.UID) {
		if j := c.owner(old.Namespace, was); j != nil {
			c.AddObject(j)
		}
	}
	if j := c.owner(cur.Namespace, is); j != nil {
		if !tracked(cur) {
			c.finalizerRemoved(cur, j)
		}
		c.AddObject(j)
		return
	}
	if was != nil || !labels.Equals(old.Labels, cur.Labels) || tracked(cur) {
		c.handleOrphan(cur, is)
	}
}

// podDeleted is the handler of deleted pods: it updates the metrics of the finalizer and calls podGone.
func (c *Controller) podDeleted(p *corev1.Pod) {
	c.metrics.seen(p, nil)
	c.podGone(p)
}

// podGone handles a pod that was deleted or is being deleted. It enqueues the pod's Job and records that a deletion by
// this controller was observed. If the Job does not exist, it enqueues the pod, so that its finalizer is removed.
func (c *Controller) podGone(p *corev1.Pod) {
	if j := c.owner(p.Namespace, metav1.GetControllerOfNoCopy(p)); j != nil {
		c.expect.Deleted(key(j), control.ID(p))
		c.finalizerRemoved(p, j)
		c.AddObject(j)
	} else if tracked(p) {
		c.Add(podPrefixKey + p.Namespace + "/" + p.Name)
	}
}

// managedElsewhere returns the value of spec.managedBy if another controller manages the Job, or "" if this one does.
func managedElsewhere(j *batchv1.Job) string {
	if m := j.Spec.ManagedBy; m != nil && *m != name {
		return *m
	}
	return ""
}

// finishedCondition returns the Complete or Failed condition of a Job if it is true, or nil if the Job is not finished.
func finishedCondition(j *batchv1.Job) *batchv1.JobCondition {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if c := condition(&j.Status, kind); c != nil && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// condition returns the condition of s of the type kind, or nil if s has none. The result points into s.Conditions.
func condition(s *batchv1.JobStatus, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// sync reconciles the Job with the key k, or removes the finalizer of an orphaned pod if k has the prefix podPrefixKey.
// Jobs that another controller manages are ignored.
func (c *Controller) sync(ctx context.Context, k string) error {
	if len(k) > len(podPrefixKey) && k[:len(podPrefixKey)] == podPrefixKey {
		return c.syncOrphan(ctx, k[len(podPrefixKey):])
	}
	namespace, jobName := control.SplitKey(k)
	shared, err := c.jobs.Jobs(namespace).Get(jobName)
	if apierrors.IsNotFound(err) {
		c.forget(k)
		return nil
	}
	if err != nil {
		return err
	}
	if managedElsewhere(shared) != "" {
		return nil
	}
	began := c.env.Clock.Now()
	j := shared.DeepCopy()
	left := c.expect.Left(k)
	if left > 0 {
		c.AddAfter(k, left)
	}
	pods, err := c.claim(ctx, j)
	if err != nil {
		return err
	}
	if finishedCondition(j) != nil {
		c.mu.Lock()
		delete(c.failed, k)
		delete(c.released, k)
		c.mu.Unlock()
		return c.release(ctx, nil, pods)
	}
	s := &state{Controller: c, job: j, satisfied: left == 0}
	s.count(pods)
	s.action = "reconciling"
	err = s.advance(ctx)
	c.metrics.synced(s.job, c.env.Clock.Since(began), s.action, err)
	return err
}

// claim adopts the pods without a controller that the Job selects, releases those that it no longer selects, and
// returns those that the Job controls.
func (c *Controller) claim(ctx context.Context, j *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("couldn't convert Job selector: %w", err)
	}
	pods, err := control.Owned[*corev1.Pod](c.podIndex, j, true)
	if err != nil {
		return nil, err
	}
	claimer := control.Claimer[*corev1.Pod]{
		Owner: j, Kind: Kind, Selector: selector, Patch: c.pods.Patch, Finalizers: []string{batchv1.JobTrackingFinalizer},
		CanAdopt: control.CanAdopt(j, func(ctx context.Context) (*batchv1.Job, error) {
			return c.env.Kube.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		}),
		Release: func(p *corev1.Pod) ([]byte, error) {
			return control.ReleasePatch(p, j.UID, []string{batchv1.JobTrackingFinalizer})
		},
	}
	return claimer.Claim(ctx, pods)
}

// release removes the finalizer from pods. j is the Job that they belong to, or nil if it was deleted or has finished.
func (c *Controller) release(ctx context.Context, j *batchv1.Job, pods []*corev1.Pod) error {
	errs := make([]error, len(pods))
	limit := make(chan struct{}, 20)
	var wg sync.WaitGroup
	for i, p := range pods {
		if !tracked(p) {
			continue
		}
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			c.recordRelease(j, p)
			patch := fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, p.UID, batchv1.JobTrackingFinalizer)
			err := c.pods.Patch(ctx, p, types.StrategicMergePatchType, []byte(patch))
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
				errs[i] = err
				c.forgetRelease(j, p)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// recordRelease records that the finalizer of a pod of the Job j is about to be removed. It must be called before the
// removal, so that the informer's event cannot come first. It does nothing if j is nil.
func (c *Controller) recordRelease(j *batchv1.Job, p *corev1.Pod) {
	if j == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key(j)
	if c.released[k] == nil {
		c.released[k] = map[types.UID]bool{}
	}
	c.released[k][p.UID] = true
}

// forgetRelease reverts recordRelease after a failed removal.
func (c *Controller) forgetRelease(j *batchv1.Job, p *corev1.Pod) {
	if j != nil {
		c.finalizerRemoved(p, j)
	}
}

// syncOrphan removes the finalizer from the pod with the key k if the pod has no controller or its Job does not
// exist. It checks the latter with the API server, because the cache may be stale.
func (c *Controller) syncOrphan(ctx context.Context, k string) error {
	obj, ok, err := c.podIndex.GetByKey(k)
	p, isPod := obj.(*corev1.Pod)
	if err != nil || !ok || !isPod || !tracked(p) {
		return err
	}
	ref := metav1.GetControllerOfNoCopy(p)
	if ref != nil {
		if ref.Kind != Kind.Kind || ref.APIVersion != batchv1.SchemeGroupVersion.String() || c.owner(p.Namespace, ref) != nil {
			return nil
		}
		// The cache may be stale.
		j, err := c.env.Kube.BatchV1().Jobs(p.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && j.UID == ref.UID {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.release(ctx, nil, []*corev1.Pod{p})
}

// write writes the status s of the Job j if it has changed, and updates j with the API server's response. It is not an
// error if the Job was deleted.
func (c *Controller) write(ctx context.Context, j *batchv1.Job, s batchv1.JobStatus) error {
	if equality.Semantic.DeepEqual(j.Status, s) {
		return nil
	}
	next := j.DeepCopy()
	next.Status = s
	written, err := c.env.Kube.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating status: %w", err)
	}
	written.DeepCopyInto(j)
	return nil
}
