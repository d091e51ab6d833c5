package batch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// progress contains which conditions of a Job's status are true, for comparing the old and the new
// status.
type progress struct {
	complete, failed, failureTarget, successMet bool
	// suspended and resumed are set if the Suspended condition is true or false, respectively.
	suspended, resumed bool
}

// progressOf returns the progress that the conditions of a status show.
func progressOf(s *batchv1.JobStatus) progress {
	has := func(t batchv1.JobConditionType, want corev1.ConditionStatus) bool {
		return slices.ContainsFunc(s.Conditions, func(c batchv1.JobCondition) bool { return c.Type == t && c.Status == want })
	}
	return progress{
		complete: has(batchv1.JobComplete, corev1.ConditionTrue), failed: has(batchv1.JobFailed, corev1.ConditionTrue),
		failureTarget: has(batchv1.JobFailureTarget, corev1.ConditionTrue), successMet: has(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue),
		suspended: has(batchv1.JobSuspended, corev1.ConditionTrue), resumed: has(batchv1.JobSuspended, corev1.ConditionFalse),
	}
}

// finished reports whether the Job has completed or failed.
func (p progress) finished() bool { return p.complete || p.failed }

// same reports whether a and b are both nil or point to equal values.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// validateJobStatus validates a status update. Most rules apply only to changed fields, so that a
// status which violates one of them already can still be updated, and the controller can correct a
// status that a spec change has made invalid.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#delegation-of-managing-a-job-object-to-external-controller
func validateJobStatus(j, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("status")
	s, o := &j.Status, &old.Status
	errs := nonNegative(&s.Active, path.Child("active"))
	errs = append(errs, nonNegative(&s.Succeeded, path.Child("succeeded"))...)
	errs = append(errs, nonNegative(&s.Failed, path.Child("failed"))...)
	errs = append(errs, nonNegative(s.Ready, path.Child("ready"))...)
	errs = append(errs, nonNegative(s.Terminating, path.Child("terminating"))...)
	errs = append(errs, validateUncounted(s.UncountedTerminatedPods, path.Child("uncountedTerminatedPods"))...)
	is, was := progressOf(s), progressOf(o)
	errs = append(errs, validateFinished(j, o, is, was, path)...)
	errs = append(errs, validateIndexes(j, o, path)...)
	finishes := is.finished() != was.finished()
	if t := s.Terminating; (finishes || !same(t, o.Terminating)) && t != nil && *t > 0 && is.finished() {
		errs = append(errs, field.Invalid(path.Child("terminating"), t, "terminating>0 is invalid for finished job"))
	}
	if r := s.Ready; (!same(r, o.Ready) || s.Active != o.Active) && r != nil && *r > s.Active {
		errs = append(errs, field.Invalid(path.Child("ready"), *r, "cannot set more ready pods than active"))
	}
	conditions := func(text string) {
		errs = append(errs, field.Invalid(path.Child("conditions"), field.OmitValueType{}, text))
	}
	if is.successMet && is.failed {
		conditions("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if is.successMet && is.failureTarget {
		conditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
	if j.Spec.SuccessPolicy != nil && !is.successMet && is.complete {
		conditions("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	}
	return append(errs, validateJobProgress(j, old, is, was, path)...)
}

// validateFinished checks that the conditions, counts and times of the Job's status are consistent
// if it is finished. o is the stored status; is and was are the progress of the new and the stored
// status. Rules only apply if a field that they contain has changed.
func validateFinished(j *batchv1.Job, o *batchv1.JobStatus, is, was progress, path *field.Path) field.ErrorList {
	s := &j.Status
	var errs field.ErrorList
	invalid := func(name string, value any, text string) {
		errs = append(errs, field.Invalid(path.Child(name), value, text))
	}
	conditions := func(text string) { invalid("conditions", field.OmitValueType{}, text) }
	completes, fails, finishes := is.complete != was.complete, is.failed != was.failed, is.finished() != was.finished()
	started, ended := !same(s.StartTime, o.StartTime), !same(s.CompletionTime, o.CompletionTime)
	if (completes || fails) && is.complete && is.failed {
		conditions("cannot set Complete=True and Failed=true conditions")
	}
	if (completes || is.failureTarget != was.failureTarget) && is.complete && is.failureTarget {
		conditions("cannot set Complete=True and FailureTarget=true conditions")
	}
	if (completes || ended) && s.CompletionTime != nil && !is.complete {
		invalid("completionTime", s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
	}
	if (completes || ended) && s.CompletionTime == nil && is.complete {
		errs = append(errs, field.Required(path.Child("completionTime"), "completionTime is required for Complete jobs"))
	}
	if (started || ended) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		invalid("completionTime", s.CompletionTime, "must be equal to or after `startTime`")
	}
	if (fails || !same(s.FailedIndexes, o.FailedIndexes)) && is.failed && !is.failureTarget {
		conditions("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if (completes || is.successMet != was.successMet) && is.complete && !is.successMet {
		conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
	if (finishes || s.Active != o.Active) && s.Active > 0 && is.finished() {
		invalid("active", s.Active, "active>0 is invalid for finished job")
	}
	nothingToDo := ptr.Deref(j.Spec.Suspend, false) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	if (finishes || started) && !nothingToDo && s.StartTime == nil && is.finished() {
		errs = append(errs, field.Required(path.Child("startTime"), "startTime is required for finished job"))
	}
	pods := s.UncountedTerminatedPods
	if (finishes || !equality.Semantic.DeepEqual(pods, o.UncountedTerminatedPods)) && is.finished() && pods != nil && len(pods.Failed)+len(pods.Succeeded) > 0 {
		invalid("uncountedTerminatedPods", pods, "must be empty for finished job")
	}
	return errs
}

// validateIndexes validates the lists of completed and failed indexes in the Job's status, if they
// differ from those in the stored status o.
func validateIndexes(j *batchv1.Job, o *batchv1.JobStatus, path *field.Path) field.ErrorList {
	s := &j.Status
	var errs field.ErrorList
	completed, failed := s.CompletedIndexes != o.CompletedIndexes, !same(s.FailedIndexes, o.FailedIndexes)
	if n := j.Spec.Completions; n != nil {
		if completed {
			if _, err := parseIndexes(s.CompletedIndexes, int(*n)); err != nil {
				errs = append(errs, field.Invalid(path.Child("completedIndexes"), s.CompletedIndexes, fmt.Sprintf("error parsing completedIndexes: %s", err)))
			}
		}
		if failed && j.Spec.BackoffLimitPerIndex != nil && s.FailedIndexes != nil {
			if _, err := parseIndexes(*s.FailedIndexes, int(*n)); err != nil {
				errs = append(errs, field.Invalid(path.Child("failedIndexes"), s.FailedIndexes, fmt.Sprintf("error parsing failedIndexes: %s", err)))
			}
		}
	}
	if mode := j.Spec.CompletionMode; completed && s.CompletedIndexes != "" && (mode == nil || *mode != batchv1.IndexedCompletion) {
		errs = append(errs, field.Invalid(path.Child("completedIndexes"), s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode"))
	}
	if failed && s.FailedIndexes != nil && j.Spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Invalid(path.Child("failedIndexes"), *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
	}
	if n := j.Spec.Completions; (completed || failed) && n != nil && s.FailedIndexes != nil {
		if at, both := overlap(s.CompletedIndexes, *s.FailedIndexes, int(*n)); both {
			errs = append(errs, field.Invalid(path.Child("failedIndexes"), *s.FailedIndexes, fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", at)))
		}
	}
	return errs
}

// validateJobProgress rejects status updates that revert the progress of a Job, such as removing a
// terminal condition or decreasing a counter. is and was are the progress of the new and the stored
// status.
func validateJobProgress(j, old *batchv1.Job, is, was progress, path *field.Path) field.ErrorList {
	s, o := &j.Status, &old.Status
	var errs field.ErrorList
	invalid := func(name string, value any, text string) {
		errs = append(errs, field.Invalid(path.Child(name), value, text))
	}
	conditions := func(text string) { invalid("conditions", field.OmitValueType{}, text) }
	for _, c := range []struct {
		t       batchv1.JobConditionType
		was, is bool
	}{
		{batchv1.JobFailed, was.failed, is.failed},
		{batchv1.JobComplete, was.complete, is.complete},
		{batchv1.JobFailureTarget, was.failureTarget, is.failureTarget},
	} {
		if c.was && !c.is {
			conditions(fmt.Sprintf("cannot disable the terminal %s=True condition", c.t))
		}
	}
	if s.Failed < o.Failed {
		invalid("failed", s.Failed, "cannot decrease the failed counter")
	}
	// An elastic indexed Job can be scaled down.
	elastic := j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion && same(j.Spec.Completions, j.Spec.Parallelism)
	if s.Succeeded < o.Succeeded && !elastic {
		invalid("succeeded", s.Succeeded, "cannot decrease the succeeded counter")
	}
	if s.CompletionTime != nil && o.CompletionTime != nil && *s.CompletionTime != *o.CompletionTime {
		invalid("completionTime", s.CompletionTime, "field is immutable")
	}
	resumes := was.suspended && is.resumed
	if o.StartTime != nil && !same(s.StartTime, o.StartTime) && !resumes && (j.Spec.Suspend == nil || !*j.Spec.Suspend) {
		invalid("startTime", s.StartTime, "field is immutable for unsuspended job once set")
	}
	if was.successMet && !is.successMet {
		conditions("cannot disable the SuccessCriteriaMet=True condition")
	}
	if was.complete && !was.successMet && is.successMet {
		conditions("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
	return errs
}

// indexes is an interval of completion indexes of an indexed Job, such as 3-5. It includes both ends.
type indexes struct{ from, to int }

// parseIndexes parses a list such as "1,3-5". The indexes must be in ascending order and less than completions. An
// empty text is an empty list.
func parseIndexes(text string, completions int) ([]indexes, error) {
	if text == "" {
		return nil, nil
	}
	var out []indexes
	for part := range strings.SplitSeq(text, ",") {
		x, err := parseInterval(part, completions)
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && out[n-1].to >= x.from {
			return nil, fmt.Errorf("non-increasing order, previous: %d, current: %d", out[n-1].to, x.from)
		}
		out = append(out, x)
	}
	return out, nil
}

// parseInterval parses one element of a list of indexes, "3" or "3-5", whose first index must be less than the last.
// All indexes must be less than completions.
func parseInterval(text string, completions int) (indexes, error) {
	parts := strings.Split(text, "-")
	if len(parts) > 2 {
		return indexes{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	var ends [2]int
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return indexes{}, fmt.Errorf("cannot convert string to integer for index: %q", part)
		}
		if n >= completions {
			return indexes{}, fmt.Errorf("too large index: %q", part)
		}
		ends[i] = n
	}
	if len(parts) == 1 {
		return indexes{ends[0], ends[0]}, nil
	}
	if ends[0] >= ends[1] {
		return indexes{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", ends[0], ends[1])
	}
	return indexes{ends[0], ends[1]}, nil
}

// overlap returns the first index that is in both lists a and b, and whether there is one. Invalid
// intervals are ignored, because validateIndexes has reported them already.
func overlap(a, b string, completions int) (int, bool) {
	var lists [2][]indexes
	for i, text := range []string{a, b} {
		for part := range strings.SplitSeq(text, ",") {
			if x, err := parseInterval(part, completions); err == nil {
				lists[i] = append(lists[i], x)
			}
		}
	}
	for len(lists[0]) > 0 && len(lists[1]) > 0 {
		x, y := lists[0][0], lists[1][0]
		if x.from <= y.to && y.from <= x.to {
			return max(x.from, y.from), true
		}
		if x.from <= y.from {
			lists[0] = lists[0][1:]
		} else {
			lists[1] = lists[1][1:]
		}
	}
	return 0, false
}
