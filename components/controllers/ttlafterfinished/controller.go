// Package ttlafterfinished deletes finished Jobs when their TTL expires.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"

	"hyperkube/components/controllers/internal/control"
)

// Controller deletes Jobs with a TTL when they have been finished for that time.
type Controller struct {
	*control.Loop
	env  control.Env
	jobs batchlisters.JobLister
	// late measures how long after the TTL expiration Jobs are deleted.
	late prometheus.Histogram
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	jobs := env.Informers.Batch().V1().Jobs()
	c := &Controller{env: env, jobs: jobs.Lister(), late: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "ttl_after_finished_controller_job_deletion_duration_seconds",
		Help:    "[ALPHA] The time it took to delete the job since it became eligible for deletion",
		Buckets: prometheus.ExponentialBuckets(0.1, 2, 14),
	})}
	if err := env.Register(c.late); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "ttlafterfinished", c.sync)
	add := func(j *batchv1.Job) {
		if _, ok := expiry(j); ok {
			c.AddObject(j)
		}
	}
	return c, c.Watch(jobs.Informer(), control.AddedOrUpdated(add))
}

// expiry returns when the TTL of a Job expires. It returns false if the Job is not finished, has no TTL or is being
// deleted.
func expiry(j *batchv1.Job) (time.Time, bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

// sync deletes the Job with the key and its pods if the TTL has expired, or schedules another sync for that time.
// Before the deletion it checks the TTL of the Job in the API server, because the cache may be stale.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	j, err := c.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wait := func(j *batchv1.Job) bool {
		at, ok := expiry(j)
		if !ok {
			return true
		}
		left := at.Sub(c.env.Clock.Now())
		if left > 0 {
			c.AddAfter(key, left)
		}
		return left > 0
	}
	if wait(j) {
		return nil
	}
	// The TTL may have been changed since the cached version.
	fresh, err := c.env.Kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (fresh.UID != j.UID || wait(fresh)) {
		return nil
	}
	if err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground
	err = c.env.Kube.BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &fresh.UID, ResourceVersion: &fresh.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting finished job: %w", err)
	}
	if at, ok := expiry(fresh); ok && err == nil {
		c.late.Observe(c.env.Clock.Since(at).Seconds())
	}
	return nil
}
