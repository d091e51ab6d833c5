package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"hyperkube/internal/pod/podutil"
)

// state is the state of one sync of one Job: the classified pods, the completion indexes and the status to write. It
// is not safe for concurrent use.
type state struct {
	*Controller
	job *batchv1.Job // a private copy
	// satisfied is true if the cache contains all pods that the controller has created, and shows all its deletions.
	satisfied bool

	// next is the status that will be written.
	next batchv1.JobStatus
	// active, ready, and terminating are the Job's pods in these states.
	active, ready, terminating []*corev1.Pod
	// running are the pods that have not terminated, including those being deleted. counted are the
	// pods whose termination is recorded in next and whose finalizer can be removed.
	running []*corev1.Pod
	counted []*corev1.Pod
	// delayed are failed pods that are counted only after they are replaced.
	delayed []*corev1.Pod
	indexState
	// newFailed and newSucceeded are the termination times of pods that this sync records,
	// including failures that do not count.
	newFailed, newSucceeded []time.Time
	// failJobMessage is the message if the Job fails by its failure policy, or "".
	failJobMessage string
	// action is what the sync did, for metrics.
	action string
	// byPolicy counts pods by the failure policy's action.
	byPolicy map[batchv1.PodFailurePolicyAction]int
	// succeeded and failed are the numbers of pods, including recorded but not yet counted ones.
	succeeded, failed int32
	// emitEvent emits an event. It is called after the status is written, so that a sync of an outdated
	// Job emits no event.
	emitEvent func()
}

// indexState contains the state of each completion index of an indexed Job: completed, failed, and the number of
// failures.
type indexState struct {
	// completedIndexes and failedIndexes are the indexes that completed, and that failed permanently.
	completedIndexes, failedIndexes indexes
	// attempts is how often each index has failed.
	attempts map[int]int32
	// ignored is how often each index has failed with failures that the failure policy ignores.
	ignored map[int]int32
	// failedAt is when each index failed last.
	failedAt map[int]time.Time
}

// isFailed reports whether a pod counts as failed. With the pod replacement policy TerminatingOrFailed, this includes a
// pod that is being deleted, because it may never reach the phase Failed.
func isFailed(j *batchv1.Job, p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	if onlyFailed(j) {
		return false
	}
	// A pod that is being deleted may never reach the phase Failed.
	return p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

// onlyFailed reports whether a pod is replaced only when it has reached the phase Failed, and not already while it is
// being deleted.
func onlyFailed(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed || j.Spec.PodReplacementPolicy == nil && j.Spec.PodFailurePolicy != nil
}

// limit returns the number of indexes of an indexed Job.
func (s *state) limit() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

// count classifies the pods and records terminated ones in s.next. A terminated pod is counted in three steps, so that
// none is counted twice or lost: (1) its UID is added to the status, (2) its finalizer is removed, (3) the UID in the
// status is replaced by an incremented counter. count does steps 1 and 3 in s.next; step 2 follows when the status is
// written.
func (s *state) count(pods []*corev1.Pod) {
	s.initStatus()
	noted := s.finishCounted(pods)
	ended := s.classify(pods, noted)
	s.delayed = s.delayedPods(ended)
	for _, p := range ended {
		if noted[p.UID] || !slices.Contains(s.delayed, p) {
			s.recordFailed(p, noted[p.UID])
		}
	}
	if s.job.DeletionTimestamp != nil {
		// The Job is being deleted, so the pods need not be counted any more.
		for _, p := range slices.Concat(s.active, s.terminating) {
			if s.uncounted(p) && !slices.Contains(s.counted, p) && len(s.counted) < maxCount {
				s.counted = append(s.counted, p)
			}
		}
	}
	s.computeCounters(noted)
}

// initStatus initializes s.next, the status to write, and the state of the completion indexes from the current status
// of the Job.
func (s *state) initStatus() {
	s.next = *s.job.Status.DeepCopy()
	if s.next.UncountedTerminatedPods == nil {
		s.next.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if isIndexed(s.job) {
		s.completedIndexes = parseIndexes(s.next.CompletedIndexes, s.limit())
		if s.next.FailedIndexes != nil {
			s.failedIndexes = parseIndexes(*s.next.FailedIndexes, s.limit())
		}
	}
	s.attempts, s.ignored, s.failedAt = map[int]int32{}, map[int]int32{}, map[int]time.Time{}
}

// finishCounted does step 3 of counting (see count): UIDs of pods whose finalizer is removed are replaced by
// incremented counters. It returns the UIDs that stay in the status.
func (s *state) finishCounted(pods []*corev1.Pod) map[types.UID]bool {
	held := map[types.UID]bool{}
	for _, p := range pods {
		if s.uncounted(p) {
			held[p.UID] = true
		}
	}
	noted := map[types.UID]bool{}
	settle := func(uids []types.UID, n *int32) []types.UID {
		var rest []types.UID
		for _, u := range uids {
			if held[u] {
				rest = append(rest, u)
				noted[u] = true
			} else {
				*n++
			}
		}
		return rest
	}
	uncounted := s.next.UncountedTerminatedPods
	uncounted.Succeeded = settle(uncounted.Succeeded, &s.next.Succeeded)
	uncounted.Failed = settle(uncounted.Failed, &s.next.Failed)
	return noted
}

// classify adds each pod to the list for its state. For succeeded pods it does step 1 of counting (see count); it
// returns the failed pods. noted are the UIDs that are already in the status.
func (s *state) classify(pods []*corev1.Pod, noted map[types.UID]bool) (failed []*corev1.Pod) {
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			s.running = append(s.running, p)
		}
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			s.recordSucceeded(p, noted[p.UID])
		case isFailed(s.job, p):
			index, hasIndex := indexOf(p)
			s.applyFailurePolicy(p, index, isIndexed(s.job) && hasIndex)
			failed = append(failed, p)
			if p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodFailed {
				s.terminating = append(s.terminating, p)
			}
		case p.DeletionTimestamp != nil:
			s.terminating = append(s.terminating, p)
		default:
			s.active = append(s.active, p)
			if podutil.Ready(p) {
				s.ready = append(s.ready, p)
			}
		}
	}
	return failed
}

// recordSucceeded does step 1 of counting (see count) for a succeeded pod. noted is true if its UID is already in the
// status.
func (s *state) recordSucceeded(p *corev1.Pod, noted bool) {
	if !s.uncounted(p) || !noted && len(s.counted) >= maxCount {
		return
	}
	s.counted = append(s.counted, p)
	if isIndexed(s.job) {
		// A completed index is its own record: the UID is not needed.
		if index, ok := indexOf(p); ok && index < s.limit() && !s.completedIndexes.has(index) {
			s.completedIndexes = s.completedIndexes.with(index)
			s.newSucceeded = append(s.newSucceeded, finishedAt(p))
		}
		return
	}
	if !noted {
		uncounted := s.next.UncountedTerminatedPods
		uncounted.Succeeded = append(uncounted.Succeeded, p.UID)
		s.newSucceeded = append(s.newSucceeded, finishedAt(p))
	}
}

// computeCounters sets the counters of s.next. noted are the UIDs that were in the status before this sync.
func (s *state) computeCounters(noted map[types.UID]bool) {
	uncounted := s.next.UncountedTerminatedPods
	s.succeeded = s.next.Succeeded + int32(len(uncounted.Succeeded))
	if isIndexed(s.job) {
		s.next.CompletedIndexes = s.completedIndexes.String()
		s.next.Succeeded = int32(s.completedIndexes.total())
		s.succeeded = s.next.Succeeded
		if s.job.Spec.BackoffLimitPerIndex != nil {
			text := s.failedIndexes.String()
			s.next.FailedIndexes = &text
		}
	}
	s.failed = s.next.Failed + int32(len(uncounted.Failed))
	for _, p := range s.delayed {
		if action, _ := matchFailurePolicy(s.job, p); s.counts(p) && action != batchv1.PodFailurePolicyActionIgnore && !noted[p.UID] {
			s.failed++
		}
	}
	s.next.Active = int32(len(s.active))
	ready, terminating := int32(len(s.ready)), int32(len(s.terminating))
	s.next.Ready, s.next.Terminating = &ready, &terminating
}

// applyFailurePolicy applies the pod failure policy to a failed pod: it sets failJobMessage if the Job must fail. If
// each index has a backoff limit, it also updates the failures of the pod's index. hasIndex is false if the pod has no
// index.
func (s *state) applyFailurePolicy(p *corev1.Pod, index int, hasIndex bool) {
	action, why := matchFailurePolicy(s.job, p)
	if action == batchv1.PodFailurePolicyActionFailJob && s.failJobMessage == "" {
		s.failJobMessage = why
	}
	if !hasIndex || s.job.Spec.BackoffLimitPerIndex == nil || !s.uncounted(p) {
		return
	}
	n, ignored := failuresOf(p), ignoredOf(p)
	if action != batchv1.PodFailurePolicyActionIgnore {
		n++
	} else {
		ignored++
	}
	if n+ignored > s.attempts[index]+s.ignored[index] {
		s.attempts[index], s.ignored[index] = n, ignored
	}
	if at := finishedAt(p); at.After(s.failedAt[index]) {
		s.failedAt[index] = at
	}
	if action == batchv1.PodFailurePolicyActionFailIndex || n > *s.job.Spec.BackoffLimitPerIndex {
		if !s.failedIndexes.has(index) && index < s.limit() {
			s.failedIndexes = s.failedIndexes.with(index)
		}
	}
}

// delayedPods returns those of the failed pods that are not counted until their index has a new pod, because the new
// pod stores the number of failures of the index. There is at most one for each index.
func (s *state) delayedPods(failed []*corev1.Pod) []*corev1.Pod {
	if s.job.Spec.BackoffLimitPerIndex == nil || s.job.DeletionTimestamp != nil {
		return nil
	}
	active := map[int]bool{}
	for _, p := range s.active {
		if i, ok := indexOf(p); ok {
			active[i] = true
		}
	}
	last := map[int]*corev1.Pod{}
	for _, p := range failed {
		i, ok := indexOf(p)
		if !ok || !s.uncounted(p) || i >= s.limit() || active[i] || s.completedIndexes.has(i) || s.failedIndexes.has(i) {
			continue
		}
		if q := last[i]; q == nil || failuresOf(q)+ignoredOf(q) <= failuresOf(p)+ignoredOf(p) && !finishedAt(p).Before(finishedAt(q)) {
			last[i] = p
		}
	}
	return slices.Collect(maps.Values(last))
}

// recordFailed does step 1 of counting (see count) for a failed pod, unless the pod failure policy ignores its failure.
// before is true if its UID is already in the status.
func (s *state) recordFailed(p *corev1.Pod, before bool) {
	if !s.uncounted(p) || !before && len(s.counted) >= maxCount {
		return
	}
	action, why := matchFailurePolicy(s.job, p)
	s.counted = append(s.counted, p)
	if !s.counts(p) {
		return
	}
	if !before {
		s.newFailed = append(s.newFailed, finishedAt(p))
	}
	if !before && why != "" {
		if s.byPolicy == nil {
			s.byPolicy = map[batchv1.PodFailurePolicyAction]int{}
		}
		s.byPolicy[action]++
	}
	if before || action == batchv1.PodFailurePolicyActionIgnore {
		return
	}
	noted := s.next.UncountedTerminatedPods
	noted.Failed = append(noted.Failed, p.UID)
}

// counts reports whether the failure of a pod can count. In an indexed Job, the pod must have a valid index.
func (s *state) counts(p *corev1.Pod) bool {
	if !isIndexed(s.job) {
		return true
	}
	i, ok := indexOf(p)
	return ok && i < s.limit()
}

// terminateAll deletes the remaining pods of a Job that completes or fails. failed is true if the Job fails; these pods
// then count as failed. It returns false if the cache may lack pods of the Job; the caller must then not set the Job's
// final condition yet.
func (s *state) terminateAll(ctx context.Context, failed bool) (bool, error) {
	if err := s.deletePods(ctx, s.active); err != nil || !s.satisfied {
		return false, err
	}
	for _, p := range s.delayed {
		if !slices.Contains(s.counted, p) {
			s.recordFailed(p, slices.Contains(s.next.UncountedTerminatedPods.Failed, p.UID))
		}
	}
	noted := s.next.UncountedTerminatedPods
	for _, p := range slices.Concat(s.active, s.terminating) {
		if !s.uncounted(p) || slices.Contains(s.counted, p) || len(s.counted) >= maxCount {
			continue
		}
		s.counted = append(s.counted, p)
		if action, _ := matchFailurePolicy(s.job, p); failed && s.counts(p) && action != batchv1.PodFailurePolicyActionIgnore && !slices.Contains(noted.Failed, p.UID) {
			noted.Failed = append(noted.Failed, p.UID)
		}
	}
	return true, nil
}

// suspended reports whether spec.suspend of the Job is true.
func (s *state) suspended() bool { return ptr.Deref(s.job.Spec.Suspend, false) }

// advance makes the next step of the Job after count: it creates or deletes pods, or finishes the Job. Then it writes
// the status and removes the finalizers of counted pods.
func (s *state) advance(ctx context.Context) error {
	k := key(s.job)
	if s.next.StartTime == nil && !s.suspended() {
		now := metav1.NewTime(s.env.Clock.Now())
		s.next.StartTime = &now
	}
	wait, inARow := s.backoff(k, s.newFailed, s.newSucceeded)
	var workErr error
	settled := false
	failReason, failMessage, failed := s.failure()
	okReason, okMessage, done := s.success()
	// A decision that is in the status is final. Otherwise failure takes precedence.
	if c := condition(&s.job.Status, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		failed = false
	}
	done = done && !failed
	switch {
	case failed:
		if settled, workErr = s.terminateAll(ctx, true); settled {
			s.set(batchv1.JobFailureTarget, corev1.ConditionTrue, failReason, failMessage)
		}
	case done:
		if settled, workErr = s.terminateAll(ctx, false); settled {
			s.set(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, okReason, okMessage)
		}
	case s.job.DeletionTimestamp != nil || !s.satisfied:
		// The garbage collector deletes the pods, or the cache lacks some of them.
	case s.suspended():
		workErr = s.suspend(ctx)
	default:
		if c := condition(&s.next, batchv1.JobSuspended); c != nil && c.Status == corev1.ConditionTrue {
			s.set(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed")
			now := metav1.NewTime(s.env.Clock.Now())
			s.next.StartTime = &now
			s.emitEvent = func() { s.env.Events.Event(s.job, corev1.EventTypeNormal, "Resumed", "Job resumed") }
		}
		s.action = "tracking"
		workErr = s.manage(ctx, wait)
	}
	// The Job is finished only when the last pod has terminated and is counted.
	noted := s.next.UncountedTerminatedPods
	over := settled && len(s.active)+len(s.terminating)+len(s.counted)+len(noted.Succeeded)+len(noted.Failed) == 0
	if over {
		now := metav1.NewTime(s.env.Clock.Now())
		if done {
			s.set(batchv1.JobComplete, corev1.ConditionTrue, okReason, okMessage)
			s.next.CompletionTime = &now
		} else {
			s.set(batchv1.JobFailed, corev1.ConditionTrue, failReason, failMessage)
		}
	}
	was := s.job.Status
	if err := s.write(ctx, s.job, s.next); err != nil {
		return errors.Join(workErr, err)
	}
	s.remember(k, inARow)
	if s.emitEvent != nil {
		s.emitEvent()
	}
	s.metrics.counted(s.job, &was, &s.job.Status)
	for action, n := range s.byPolicy {
		s.metrics.byPolicy.WithLabelValues(string(action)).Add(float64(n))
	}
	switch {
	case over && done:
		s.metrics.jobFinished(s.job, true, okReason)
		if n := s.job.Spec.Completions; n != nil && s.job.Status.Succeeded > *n {
			s.env.Events.Event(s.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		s.env.Events.Event(s.job, corev1.EventTypeNormal, "Completed", "Job completed")
	case over:
		s.metrics.jobFinished(s.job, false, failReason)
		s.env.Events.Event(s.job, corev1.EventTypeWarning, failReason, failMessage)
	}
	// The second step, after the first is written.
	if err := s.release(ctx, s.job, s.counted); err != nil {
		return errors.Join(workErr, err)
	}
	if !over && !s.suspended() && s.job.Spec.ActiveDeadlineSeconds != nil {
		if left := s.deadline(); left > 0 {
			s.AddAfter(k, left)
		}
	}
	return workErr
}

// suspend discards the active pods of a suspended Job, sets the condition Suspended and removes the start time from
// the status, so that the active deadline begins again when the Job is resumed.
func (s *state) suspend(ctx context.Context) error {
	// Discarded pods do not count as failed.
	err := s.discard(ctx, s.active)
	if s.set(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended") {
		s.emitEvent = func() { s.env.Events.Event(s.job, corev1.EventTypeNormal, "Suspended", "Job suspended") }
	}
	s.next.StartTime = nil
	return err
}
