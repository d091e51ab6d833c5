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

	"hyperkube/internal/podfacts"
)

// state is one sync of one Job. It is used by one goroutine.
type state struct {
	*Controller
	job       *batchv1.Job // our own copy
	satisfied bool

	// next is the status as it will be written.
	next batchv1.JobStatus
	// active, and those whose end is noted and whose finalizer may go.
	active, ready, terminating []*corev1.Pod
	// running are the pods that have not ended, those being deleted included.
	running []*corev1.Pod
	counted []*corev1.Pod
	// delayed are failed pods whose end is noted only once they are replaced.
	delayed []*corev1.Pod
	// done and dead are the indexes that completed and that failed for good.
	done, dead indexes
	// attempts tells how often each index failed so far.
	attempts map[int]int32
	// ignored tells how often each failed in a way that does not count.
	ignored map[int]int32
	// failedAt is when each index failed last.
	failedAt map[int]time.Time
	// newFailed and newSucceeded are when pods ended whose end is noted now, also
	// of those that do not count as failed.
	newFailed, newSucceeded []time.Time
	// verdict is why the Job fails by its failure policy, empty if it does not.
	verdict string
	// action is what the sync did, for metrics.
	action string
	// byPolicy are the actions of the failure policy that decided about a pod.
	byPolicy map[batchv1.PodFailurePolicyAction]int
	// succeeded and failed so far, those noted but not yet counted included.
	succeeded, failed int32
	// tell is recorded once the status is written: what another sync decides on
	// an outdated Job is told by none.
	tell func()
}

func isFailed(j *batchv1.Job, p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	if onlyFailed(j) {
		return false
	}
	// One that is being deleted may never come to fail.
	return p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

// onlyFailed tells whether a pod is replaced only once it has fully failed.
func onlyFailed(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed || j.Spec.PodReplacementPolicy == nil && j.Spec.PodFailurePolicy != nil
}

func (s *state) limit() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

// count sorts the pods and notes those that ended. A pod that ends is counted in three
// steps, so that none is counted twice or not at all: its UID is noted in the status, then
// its finalizer comes off, then the UID becomes a number. The finalizer is taken off once
// the status is written.
func (s *state) count(pods []*corev1.Pod) {
	s.resume()
	noted := s.settle(pods)
	ended := s.tellApart(pods, noted)
	s.delayed = s.remembered(ended)
	for _, p := range ended {
		if noted[p.UID] || !slices.Contains(s.delayed, p) {
			s.noteFailed(p, noted[p.UID])
		}
	}
	if s.job.DeletionTimestamp != nil {
		// Nobody waits for them to be counted any more.
		for _, p := range slices.Concat(s.active, s.terminating) {
			if s.held(p) && !slices.Contains(s.counted, p) && len(s.counted) < maxCount {
				s.counted = append(s.counted, p)
			}
		}
	}
	s.sum(noted)
}

// resume begins with what the status says.
func (s *state) resume() {
	s.next = *s.job.Status.DeepCopy()
	if s.next.UncountedTerminatedPods == nil {
		s.next.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if isIndexed(s.job) {
		s.done = parseIndexes(s.next.CompletedIndexes, s.limit())
		if s.next.FailedIndexes != nil {
			s.dead = parseIndexes(*s.next.FailedIndexes, s.limit())
		}
	}
	s.attempts, s.ignored, s.failedAt = map[int]int32{}, map[int]int32{}, map[int]time.Time{}
}

// settle takes the third step: of pods that are not held any more, the UID becomes a
// number. It returns the UIDs that stay noted.
func (s *state) settle(pods []*corev1.Pod) map[types.UID]bool {
	held := map[types.UID]bool{}
	for _, p := range pods {
		if s.held(p) {
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

// tellApart sorts pods, takes the first step for those that succeeded unless they are
// noted, and returns those that failed.
func (s *state) tellApart(pods []*corev1.Pod, noted map[types.UID]bool) (failed []*corev1.Pod) {
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			s.running = append(s.running, p)
		}
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			s.noteSucceeded(p, noted[p.UID])
		case isFailed(s.job, p):
			index, hasIndex := indexOf(p)
			s.tally(p, index, isIndexed(s.job) && hasIndex)
			failed = append(failed, p)
			if p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodFailed {
				s.terminating = append(s.terminating, p)
			}
		case p.DeletionTimestamp != nil:
			s.terminating = append(s.terminating, p)
		default:
			s.active = append(s.active, p)
			if podfacts.Ready(p) {
				s.ready = append(s.ready, p)
			}
		}
	}
	return failed
}

// noteSucceeded takes the first step for a pod that succeeded, unless it is noted.
func (s *state) noteSucceeded(p *corev1.Pod, noted bool) {
	if !s.held(p) || !noted && len(s.counted) >= maxCount {
		return
	}
	s.counted = append(s.counted, p)
	if isIndexed(s.job) {
		// The index alone says that it is counted.
		if index, ok := indexOf(p); ok && index < s.limit() && !s.done.has(index) {
			s.done = s.done.with(index)
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

// sum makes the numbers of the status; noted are the UIDs that were before.
func (s *state) sum(noted map[types.UID]bool) {
	uncounted := s.next.UncountedTerminatedPods
	s.succeeded = s.next.Succeeded + int32(len(uncounted.Succeeded))
	if isIndexed(s.job) {
		s.next.CompletedIndexes = s.done.String()
		s.next.Succeeded = int32(s.done.total())
		s.succeeded = s.next.Succeeded
		if s.job.Spec.BackoffLimitPerIndex != nil {
			text := s.dead.String()
			s.next.FailedIndexes = &text
		}
	}
	s.failed = s.next.Failed + int32(len(uncounted.Failed))
	for _, p := range s.delayed {
		if action, _ := judge(s.job, p); s.counts(p) && action != batchv1.PodFailurePolicyActionIgnore && !noted[p.UID] {
			s.failed++
		}
	}
	s.next.Active = int32(len(s.active))
	ready, terminating := int32(len(s.ready)), int32(len(s.terminating))
	s.next.Ready, s.next.Terminating = &ready, &terminating
}

// tally applies what the failure policy says of a failed pod to the Job and to
// the pod's index.
func (s *state) tally(p *corev1.Pod, index int, hasIndex bool) {
	action, why := judge(s.job, p)
	if action == batchv1.PodFailurePolicyActionFailJob && s.verdict == "" {
		s.verdict = why
	}
	if !hasIndex || s.job.Spec.BackoffLimitPerIndex == nil || !s.held(p) {
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
		if !s.dead.has(index) && index < s.limit() {
			s.dead = s.dead.with(index)
		}
	}
}

// remembered are those of the failed pods that are kept until the next pod of
// their index is there, which carries on their count of failures.
func (s *state) remembered(failed []*corev1.Pod) []*corev1.Pod {
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
		if !ok || !s.held(p) || i >= s.limit() || active[i] || s.done.has(i) || s.dead.has(i) {
			continue
		}
		if q := last[i]; q == nil || failuresOf(q)+ignoredOf(q) <= failuresOf(p)+ignoredOf(p) && !finishedAt(p).Before(finishedAt(q)) {
			last[i] = p
		}
	}
	return slices.Collect(maps.Values(last))
}

// noteFailed notes the end of a failed pod, unless its failure policy ignores
// that.
func (s *state) noteFailed(p *corev1.Pod, before bool) {
	if !s.held(p) || !before && len(s.counted) >= maxCount {
		return
	}
	action, why := judge(s.job, p)
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

// counts tells whether a pod's failure may count at all: of an indexed Job, if it
// has one of its indexes.
func (s *state) counts(p *corev1.Pod) bool {
	if !isIndexed(s.job) {
		return true
	}
	i, ok := indexOf(p)
	return ok && i < s.limit()
}

// end deletes the pods that are left of a Job whose fate is decided, and lets go
// of them. Of a Job that fails, they count as failed. It returns false as long as
// there may be pods that the cache lacks: then the fate is not told yet.
func (s *state) end(ctx context.Context, failed bool) (bool, error) {
	if err := s.deletePods(ctx, s.active); err != nil || !s.satisfied {
		return false, err
	}
	for _, p := range s.delayed {
		if !slices.Contains(s.counted, p) {
			s.noteFailed(p, slices.Contains(s.next.UncountedTerminatedPods.Failed, p.UID))
		}
	}
	noted := s.next.UncountedTerminatedPods
	for _, p := range slices.Concat(s.active, s.terminating) {
		if !s.held(p) || slices.Contains(s.counted, p) || len(s.counted) >= maxCount {
			continue
		}
		s.counted = append(s.counted, p)
		if action, _ := judge(s.job, p); failed && s.counts(p) && action != batchv1.PodFailurePolicyActionIgnore && !slices.Contains(noted.Failed, p.UID) {
			noted.Failed = append(noted.Failed, p.UID)
		}
	}
	return true, nil
}

func (s *state) suspended() bool { return ptr.Deref(s.job.Spec.Suspend, false) }

// advance does what the state asks for, and writes the status.
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
	// What was decided once stays so. Else failure comes first.
	if c := condition(&s.job.Status, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		failed = false
	}
	done = done && !failed
	switch {
	case failed:
		if settled, workErr = s.end(ctx, true); settled {
			s.set(batchv1.JobFailureTarget, corev1.ConditionTrue, failReason, failMessage)
		}
	case done:
		if settled, workErr = s.end(ctx, false); settled {
			s.set(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, okReason, okMessage)
		}
	case s.job.DeletionTimestamp != nil || !s.satisfied:
		// Its pods are others' to delete, or not all known.
	case s.suspended():
		workErr = s.suspend(ctx)
	default:
		if c := condition(&s.next, batchv1.JobSuspended); c != nil && c.Status == corev1.ConditionTrue {
			s.set(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed")
			now := metav1.NewTime(s.env.Clock.Now())
			s.next.StartTime = &now
			s.tell = func() { s.env.Events.Event(s.job, corev1.EventTypeNormal, "Resumed", "Job resumed") }
		}
		s.action = "tracking"
		workErr = s.manage(ctx, wait)
	}
	// Over only when the last pod has ended and is counted.
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
	if s.tell != nil {
		s.tell()
	}
	s.measures.counted(s.job, &was, &s.job.Status)
	for action, n := range s.byPolicy {
		s.measures.byPolicy.WithLabelValues(string(action)).Add(float64(n))
	}
	switch {
	case over && done:
		s.measures.over(s.job, true, okReason)
		if n := s.job.Spec.Completions; n != nil && s.job.Status.Succeeded > *n {
			s.env.Events.Event(s.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		s.env.Events.Event(s.job, corev1.EventTypeNormal, "Completed", "Job completed")
	case over:
		s.measures.over(s.job, false, failReason)
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

func (s *state) suspend(ctx context.Context) error {
	// They have not failed: they are not counted.
	err := s.discard(ctx, s.active)
	if s.set(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended") {
		s.tell = func() { s.env.Events.Event(s.job, corev1.EventTypeNormal, "Suspended", "Job suspended") }
	}
	s.next.StartTime = nil
	return err
}
