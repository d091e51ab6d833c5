// Package cronjob creates Jobs on a schedule.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
)

// Kind is CronJob, the kind in the owner references of the Jobs that the controller creates.
var Kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// slack is added to the delay until the next scheduled time, so that the time is past when the CronJob is synced.
const slack = 100 * time.Millisecond

// Controller reconciles CronJobs. Each sync handles one CronJob. Use New to create it.
type Controller struct {
	*control.Loop
	env      control.Env
	crons    batchlisters.CronJobLister
	jobIndex cache.Indexer
	// skew measures how long after their scheduled time Jobs are created.
	skew prometheus.Histogram
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	crons, jobs := env.Informers.Batch().V1().CronJobs(), env.Informers.Batch().V1().Jobs()
	c := &Controller{env: env, crons: crons.Lister(), jobIndex: jobs.Informer().GetIndexer()}
	c.skew = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "cronjob_controller_job_creation_skew_duration_seconds",
		Help: "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created", Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	if err := env.Register(c.skew); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "cronjob", env.Traced("CronJob", crons.Informer(), c.sync))
	if err := control.AddOwnerIndex(jobs.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(crons.Informer(), control.Handlers(func(cj *batchv1.CronJob) { c.AddObject(cj) }, c.changed, func(cj *batchv1.CronJob) { c.AddObject(cj) })); err != nil {
		return nil, err
	}
	return c, c.Watch(jobs.Informer(), control.AnyEvent(func(j *batchv1.Job) {
		if cj := control.Owner(metav1.GetControllerOfNoCopy(j), Kind, c.crons.CronJobs(j.Namespace).Get); cj != nil {
			c.AddObject(cj)
		}
	}))
}

// changed enqueues a CronJob that was updated. A CronJob with a new schedule is enqueued for its
// next time, because times of the new schedule that are already past do not count as missed.
func (c *Controller) changed(old, cj *batchv1.CronJob) {
	if old.Spec.Schedule == cj.Spec.Schedule && ptr.Equal(old.Spec.TimeZone, cj.Spec.TimeZone) {
		c.AddObject(cj)
		return
	}
	sched, err := parse(cj)
	if err != nil {
		c.env.Events.Eventf(cj, corev1.EventTypeWarning, "UnParseableCronJobSchedule", "unparseable schedule for cronjob: %s", cj.Spec.Schedule)
		return
	}
	now := c.env.Clock.Now()
	if next := sched.Next(now); !next.IsZero() {
		c.AddAfter(cj.Namespace+"/"+cj.Name, next.Sub(now)+slack)
	}
}

// finishedCondition returns the type of the condition with which a Job has finished, Complete or Failed, or "" if it
// has not finished.
func finishedCondition(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// sync creates the Job of the CronJob with this key that is due, deletes old Jobs and updates the status. It schedules
// the next sync.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	shared, err := c.crons.CronJobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	jobs, err := control.Owned[*batchv1.Job](c.jobIndex, shared, false)
	if err != nil {
		return err
	}
	r := &run{Controller: c, cj: shared.DeepCopy(), jobs: jobs, before: shared.Status}
	r.updateActive(ctx)
	after, workErr := r.schedule(ctx)
	cleanErr := r.cleanup(ctx)
	if !equality.Semantic.DeepEqual(r.before, r.cj.Status) {
		if _, err := c.env.Kube.BatchV1().CronJobs(namespace).UpdateStatus(ctx, r.cj, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return errors.Join(workErr, cleanErr, fmt.Errorf("updating status: %w", err))
		}
	}
	if after > 0 {
		c.AddAfter(key, after)
	}
	return errors.Join(workErr, cleanErr)
}

// run is the state of one sync of one CronJob. It is not safe for concurrent use.
type run struct {
	*Controller
	cj     *batchv1.CronJob // a private copy
	jobs   []*batchv1.Job   // shared with the cache; read-only
	before batchv1.CronJobStatus
}

// updateActive updates the list of active Jobs and the last successful time in r.cj.Status. It emits events about Jobs
// that have finished, are missing, or are unknown.
func (r *run) updateActive(ctx context.Context) {
	cj := r.cj
	there := map[types.UID]bool{}
	for _, j := range r.jobs {
		there[j.UID] = true
		active := slices.ContainsFunc(cj.Status.Active, func(o corev1.ObjectReference) bool { return o.UID == j.UID })
		how := finishedCondition(j)
		switch {
		case !active && how == "":
			// The Job may have just been created, and the cache may lack the status that lists it.
			live, err := r.env.Kube.BatchV1().CronJobs(cj.Namespace).Get(ctx, cj.Name, metav1.GetOptions{})
			if err == nil && slices.ContainsFunc(live.Status.Active, func(o corev1.ObjectReference) bool { return o.UID == j.UID }) {
				cj.ResourceVersion, cj.Status = live.ResourceVersion, live.Status
				r.before = *live.Status.DeepCopy()
				continue
			}
			r.env.Events.Eventf(cj, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
		case active && how != "":
			r.remove(j.UID)
			status := "Complete"
			if how == batchv1.JobFailed {
				status = "Failed"
			}
			r.env.Events.Eventf(cj, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, status)
			r.recordSuccess(j, how)
		case how != "":
			r.recordSuccess(j, how)
		}
	}
	for _, ref := range slices.Clone(cj.Status.Active) {
		if there[ref.UID] {
			continue
		}
		// The cache may not contain the Job yet.
		j, err := r.env.Kube.BatchV1().Jobs(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && j.UID != ref.UID {
			r.env.Events.Eventf(cj, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			r.remove(ref.UID)
		}
	}
}

// recordSuccess updates the last successful time of the CronJob to the completion time of the Job j, if the time is
// later and how, the condition with which j has finished, is Complete.
func (r *run) recordSuccess(j *batchv1.Job, how batchv1.JobConditionType) {
	t := j.Status.CompletionTime
	if how != batchv1.JobComplete || t == nil {
		return
	}
	if last := r.cj.Status.LastSuccessfulTime; last == nil || last.Before(t) {
		r.cj.Status.LastSuccessfulTime = t
	}
}

// remove removes the Job with the UID from the list of active Jobs in r.cj.Status, which is written at the end of the
// sync.
func (r *run) remove(uid types.UID) {
	r.cj.Status.Active = slices.DeleteFunc(r.cj.Status.Active, func(o corev1.ObjectReference) bool { return o.UID == uid })
}

// schedule creates the Job that is due, if any, and returns the delay until the next sync. The delay is 0 if no sync is
// needed: if the CronJob is suspended or is being deleted, or if its schedule or time zone is invalid. These are only
// reported with events, because a retry does not help.
func (r *run) schedule(ctx context.Context) (time.Duration, error) {
	cj, now := r.cj, r.env.Clock.Now()
	if cj.DeletionTimestamp != nil || ptr.Deref(cj.Spec.Suspend, false) {
		return 0, nil
	}
	if z := cj.Spec.TimeZone; z != nil {
		if _, err := time.LoadLocation(*z); err != nil {
			r.env.Events.Eventf(cj, corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *z, err)
			return 0, nil
		}
	}
	if strings.Contains(cj.Spec.Schedule, "TZ") {
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", cj.Spec.Schedule)
	}
	sched, err := parse(cj)
	if err != nil {
		// Retrying does not help: the user must change the CronJob.
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", cj.Spec.Schedule, err)
		return 0, nil
	}
	if sched.Next(cj.CreationTimestamp.Time).IsZero() {
		// The schedule is well-formed but never matches, for example on February 31st.
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : time difference between two schedules is less than 1 second", cj.Spec.Schedule)
		return 0, nil
	}
	due, missed := lastDue(cj, sched, now)
	next := sched.Next(now).Sub(now) + slack
	if missed > 100 {
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if due.IsZero() {
		return next, nil
	}
	if d := cj.Spec.StartingDeadlineSeconds; d != nil && due.Add(time.Duration(*d)*time.Second).Before(now) {
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
		return next, nil
	}
	name := jobName(cj, due)
	if slices.ContainsFunc(cj.Status.Active, func(o corev1.ObjectReference) bool { return o.Name == name }) ||
		cj.Status.LastScheduleTime != nil && cj.Status.LastScheduleTime.Time.Equal(due) {
		return next, nil
	}
	switch {
	case cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(cj.Status.Active) > 0:
		// The CronJob is synced again when the active Job finishes.
		r.env.Events.Eventf(cj, corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return next, nil
	case cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, ref := range slices.Clone(cj.Status.Active) {
			if err := r.delete(ctx, ref.Name); err != nil {
				return 0, err
			}
			r.remove(ref.UID)
		}
	}
	j := jobOf(cj, name, due)
	made, err := r.env.Kube.BatchV1().Jobs(cj.Namespace).Create(ctx, j, metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return 0, nil
	case apierrors.IsAlreadyExists(err):
		there, getErr := r.env.Kube.BatchV1().Jobs(cj.Namespace).Get(ctx, name, metav1.GetOptions{})
		if getErr != nil {
			return 0, getErr
		}
		if !metav1.IsControlledBy(there, cj) {
			return next, err
		}
		made = there
		if finishedCondition(there) != "" {
			cj.Status.LastScheduleTime = &metav1.Time{Time: due}
			return next, nil
		}
	case err != nil:
		r.env.Events.Eventf(cj, corev1.EventTypeWarning, control.FailedCreate, "Error creating job: %v", err)
		return 0, err
	default:
		r.skew.Observe(made.CreationTimestamp.Sub(due).Seconds())
		r.env.Events.Eventf(cj, corev1.EventTypeNormal, control.SuccessfulCreate, "Created job %v", made.Name)
	}
	cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: made.Namespace, Name: made.Name, UID: made.UID, ResourceVersion: made.ResourceVersion,
	})
	cj.Status.LastScheduleTime = &metav1.Time{Time: due}
	return next, nil
}

// jobName returns the name of the Job of a CronJob for a scheduled time. It depends only on the time, so that the Job
// is not created twice.
func jobName(cj *batchv1.CronJob, due time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, due.Unix()/60)
}

// jobOf returns the Job of a CronJob for the scheduled time due.
func jobOf(cj *batchv1.CronJob, name string, due time.Time) *batchv1.Job {
	t := cj.Spec.JobTemplate.DeepCopy()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: cj.Namespace, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			CreationTimestamp: metav1.Time{Time: due},
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(cj, Kind)},
		},
		Spec: t.Spec,
	}
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	if z := cj.Spec.TimeZone; z != nil {
		if loc, err := time.LoadLocation(*z); err == nil {
			due = due.In(loc)
		}
	}
	j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.Format(time.RFC3339)
	return j
}

// delete deletes a Job and, in the background, its pods, with an event on the CronJob. It is not an error if the Job
// does not exist.
func (r *run) delete(ctx context.Context, name string) error {
	background := metav1.DeletePropagationBackground
	err := r.env.Kube.BatchV1().Jobs(r.cj.Namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.env.Events.Eventf(r.cj, corev1.EventTypeWarning, control.FailedDelete, "Deleted job: %v", err)
		return fmt.Errorf("deleting job %s: %w", name, err)
	}
	r.env.Events.Eventf(r.cj, corev1.EventTypeNormal, control.SuccessfulDelete, "Deleted job %v", name)
	return nil
}

// cleanup deletes the oldest finished Jobs beyond the history limits of the CronJob. Without a limit, it keeps all.
func (r *run) cleanup(ctx context.Context) error {
	var errs []error
	for how, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: r.cj.Spec.SuccessfulJobsHistoryLimit,
		batchv1.JobFailed:   r.cj.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		var list []*batchv1.Job
		for _, j := range r.jobs {
			if finishedCondition(j) == how && j.DeletionTimestamp == nil {
				list = append(list, j)
			}
		}
		slices.SortFunc(list, func(a, b *batchv1.Job) int {
			x, y := a.Status.StartTime, b.Status.StartTime
			switch {
			case x == nil && y != nil:
				return 1
			case x != nil && y == nil:
				return -1
			case x != nil && !x.Equal(y):
				return x.Compare(y.Time)
			}
			return strings.Compare(a.Name, b.Name)
		})
		for i := range len(list) - int(*limit) {
			errs = append(errs, r.delete(ctx, list[i].Name))
			r.remove(list[i].UID)
		}
	}
	return errors.Join(errs...)
}
