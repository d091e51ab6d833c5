package batch

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
)

// Limits of Jobs and their failure and success policies.
const (
	maxIndexedParallelism = 100000
	maxIndexedCompletions = 100000
	maxFailureRules       = 20
	maxExitCodes          = 255
	maxConditions         = 20
	maxSuccessRules       = 20
	maxSuccessIndexes     = 64 * 1024 // bytes
	maxManagedBy          = 63
)

func validateJob(j *batchv1.Job) field.ErrorList {
	errs := append(validateGeneratedSelector(j), validateJobSpec(&j.Spec, nil, field.NewPath("spec"))...)
	return append(errs, validateHostname(j)...)
}

// validateHostname checks that the hostnames of an indexed Job's pods are valid DNS labels. It
// validates that of the last index, which is the longest.
func validateHostname(j *batchv1.Job) field.ErrorList {
	if api.ValueOf(j.Spec.CompletionMode) != batchv1.IndexedCompletion || api.ValueOf(j.Spec.Completions) <= 0 {
		return nil
	}
	name := fmt.Sprintf("%s-%d", j.Name, *j.Spec.Completions-1)
	if len(validation.IsDNS1123Label(name)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: "+name)}
}

// validateGeneratedSelector checks that the selector and the labels of the pod template are those
// of generateSelector, because the user may have set others. It does nothing if the user manages
// the selector.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if api.ValueOf(j.Spec.ManualSelector) || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if j.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	path := field.NewPath("spec", "template", "metadata", "labels")
	want := map[string]string{
		batchv1.ControllerUidLabel: string(j.UID),
		batchv1.JobNameLabel:       j.Name,
		legacyUID:                  string(j.UID),
		legacyJobName:              j.Name,
	}
	for _, key := range []string{legacyUID, legacyJobName, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		switch is, found := j.Spec.Template.Labels[key]; {
		case !found:
			errs = append(errs, field.Required(path.Key(key), fmt.Sprintf("must be '%s'", want[key])))
		case is != want[key]:
			errs = append(errs, field.Invalid(path.Key(key), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", want[key])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(labels.Set(want)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// nonNegative checks that the number in an optional field, which may be nil, is not negative.
func nonNegative[T int32 | int64](p *T, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*p), path)
}

// validateJobSpec validates a Job's spec. stored is the selector of the stored Job, whose invalid
// label values remain valid, or nil on create.
func validateJobSpec(spec *batchv1.JobSpec, stored *metav1.LabelSelector, path *field.Path) field.ErrorList {
	errs := validateJobBase(spec, path)
	if spec.Selector == nil {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, validate.SelectorOptions(stored), path.Child("selector"))...)
	}
	if s, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil && !s.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateJobBase validates what jobs and the job templates of CronJobs have in common.
func validateJobBase(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, nonNegative(spec.Parallelism, path.Child("parallelism"))...)
	errs = append(errs, nonNegative(spec.Completions, path.Child("completions"))...)
	errs = append(errs, nonNegative(spec.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds"))...)
	errs = append(errs, nonNegative(spec.BackoffLimit, path.Child("backoffLimit"))...)
	errs = append(errs, nonNegative(spec.TTLSecondsAfterFinished, path.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, nonNegative(spec.BackoffLimitPerIndex, path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, nonNegative(spec.MaxFailedIndexes, path.Child("maxFailedIndexes"))...)
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	errs = append(errs, validateMode(spec, path)...)
	if m := spec.ManagedBy; m != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(path.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs = append(errs, field.TooLong(path.Child("managedBy"), *m, maxManagedBy))
		}
	}
	if p := spec.PodReplacementPolicy; p != nil {
		at := path.Child("podReplacementPolicy")
		both := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
		switch {
		case spec.PodFailurePolicy != nil && *p != batchv1.Failed:
			errs = append(errs, field.NotSupported(at, *p, both[:1]))
		case !slices.Contains(both, *p):
			errs = append(errs, field.NotSupported(at, *p, both))
		}
	}
	if spec.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(spec, path.Child("podFailurePolicy"))...)
	}
	if spec.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy"))...)
	}
	return append(errs, validateJobTemplate(spec, path.Child("template"))...)
}

// validateJobTemplate validates the pod template of a Job. Its restart policy must be Never or, without a
// podFailurePolicy, OnFailure.
func validateJobTemplate(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := pod.ValidateTemplate(&spec.Template, path)
	at, policy := path.Child("spec", "restartPolicy"), spec.Template.Spec.RestartPolicy
	switch policy {
	case corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
		if spec.PodFailurePolicy != nil && policy != corev1.RestartPolicyNever {
			errs = append(errs, field.Invalid(at, policy, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
		}
	case "", corev1.RestartPolicyAlways:
		// Always is the default value, so the field was not set.
		errs = append(errs, field.Required(at, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)))
	default:
		errs = append(errs, field.NotSupported(at, policy, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	return errs
}

// validateMode validates the fields that depend on the completion mode.
func validateMode(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	indexed := false
	if mode := spec.CompletionMode; mode != nil {
		switch *mode {
		case batchv1.NonIndexedCompletion:
		case batchv1.IndexedCompletion:
			indexed = true
		default:
			errs = append(errs, field.NotSupported(path.Child("completionMode"), *mode,
				[]batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion}))
		}
	}
	if !indexed {
		if mode := spec.CompletionMode; mode != nil && *mode != batchv1.NonIndexedCompletion {
			return errs
		}
		if spec.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if spec.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *spec.MaxFailedIndexes, "requires indexed completion mode"))
		}
		return errs
	}
	if spec.Completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
	}
	if api.ValueOf(spec.Parallelism) > maxIndexedParallelism {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *spec.Parallelism,
			fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism, batchv1.IndexedCompletion)))
	}
	failed := path.Child("maxFailedIndexes")
	if m := spec.MaxFailedIndexes; m != nil {
		if spec.Completions != nil && *m > *spec.Completions {
			errs = append(errs, field.Invalid(failed, *m, "must be less than or equal to completions"))
		}
		if *m > maxIndexedCompletions {
			errs = append(errs, field.Invalid(failed, *m, fmt.Sprintf("must be less than or equal to %d", maxIndexedCompletions)))
		}
	}
	if api.ValueOf(spec.Completions) <= maxIndexedCompletions || spec.BackoffLimitPerIndex == nil {
		return errs
	}
	if spec.MaxFailedIndexes == nil {
		errs = append(errs, field.Required(failed, fmt.Sprintf("must be specified when completions is above %d", maxIndexedCompletions)))
	}
	const many = 10000
	text := fmt.Sprintf("must be less than or equal to %d when completions are above %d and used with backoff limit per index", many, maxIndexedCompletions)
	if n := spec.Parallelism; n != nil && *n > many {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *n, text))
	}
	if n := spec.MaxFailedIndexes; n != nil && *n > many {
		errs = append(errs, field.Invalid(failed, *n, text))
	}
	return errs
}

// validateFailurePolicy validates the podFailurePolicy of a Job, which must be set. Each rule has a list of exit codes
// or of pod conditions, not both. The action FailIndex requires backoffLimitPerIndex.
func validateFailurePolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules := path.Child("rules")
	if len(spec.PodFailurePolicy.Rules) > maxFailureRules {
		errs = append(errs, field.TooMany(rules, len(spec.PodFailurePolicy.Rules), maxFailureRules))
	}
	var names []string
	for _, c := range slices.Concat(spec.Template.Spec.Containers, spec.Template.Spec.InitContainers) {
		names = append(names, c.Name)
	}
	actions := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore}
	for i := range spec.PodFailurePolicy.Rules {
		r, at := &spec.PodFailurePolicy.Rules[i], rules.Index(i)
		switch {
		case r.Action == "":
			errs = append(errs, field.Required(at.Child("action"), fmt.Sprintf("valid values: %q", actions)))
		case !slices.Contains(actions, r.Action):
			errs = append(errs, field.NotSupported(at.Child("action"), r.Action, actions))
		case r.Action == batchv1.PodFailurePolicyActionFailIndex && spec.BackoffLimitPerIndex == nil:
			errs = append(errs, field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		if r.OnExitCodes != nil {
			errs = append(errs, validateExitCodes(r.OnExitCodes, names, at.Child("onExitCodes"))...)
		}
		if len(r.OnPodConditions) > maxConditions {
			errs = append(errs, field.TooMany(at.Child("onPodConditions"), len(r.OnPodConditions), maxConditions))
		}
		for k, c := range r.OnPodConditions {
			at := at.Child("onPodConditions").Index(k)
			for _, msg := range validation.IsQualifiedName(string(c.Type)) {
				errs = append(errs, field.Invalid(at.Child("type"), c.Type, msg))
			}
			statuses := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
			if !slices.Contains(statuses, c.Status) {
				errs = append(errs, field.NotSupported(at.Child("status"), c.Status, statuses))
			}
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
	}
	return errs
}

// validateExitCodes validates the exit codes of a failure rule. They must be sorted and unique, and must not contain 0
// for the operator In. containers are the names of the pod's containers.
func validateExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, containers []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	operators := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	switch {
	case r.Operator == "":
		errs = append(errs, field.Required(path.Child("operator"), fmt.Sprintf("valid values: %q", operators)))
	case !slices.Contains(operators, r.Operator):
		errs = append(errs, field.NotSupported(path.Child("operator"), r.Operator, operators))
	}
	if r.ContainerName != nil && !slices.Contains(containers, *r.ContainerName) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	at := path.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(at, r.Values, "at least one value is required"))
	case n > maxExitCodes:
		errs = append(errs, field.TooMany(at, n, maxExitCodes))
	}
	sorted, zero := true, false
	for i, v := range r.Values {
		zero = zero || v == 0
		if i == 0 {
			continue
		}
		if v < r.Values[i-1] {
			sorted = false
		}
		if slices.Contains(r.Values[:i], v) {
			errs = append(errs, field.Duplicate(at.Index(i), v))
		}
	}
	if zero && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
		errs = append(errs, field.Invalid(at.Index(slices.Index(r.Values, 0)), 0, "must not be 0 for the In operator"))
	}
	if !sorted {
		errs = append(errs, field.Invalid(at, r.Values, "must be ordered"))
	}
	return errs
}

// validateSuccessPolicy validates the successPolicy of a Job, which must be set and is only allowed for indexed Jobs.
// Each rule has a count, indexes, or both; a count is at most the completions and at most the number of indexes.
func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.CompletionMode == nil || *spec.CompletionMode != batchv1.IndexedCompletion {
		return field.ErrorList{field.Invalid(path, *spec.SuccessPolicy, "requires indexed completion mode")}
	}
	rules := path.Child("rules")
	switch n := len(spec.SuccessPolicy.Rules); {
	case n == 0:
		return field.ErrorList{field.Required(rules, "at least one rules must be specified when the successPolicy is specified")}
	case n > maxSuccessRules:
		return field.ErrorList{field.TooMany(rules, n, maxSuccessRules)}
	}
	var errs field.ErrorList
	for i, r := range spec.SuccessPolicy.Rules {
		at := rules.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs, field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		indexes := int32(0)
		if text := r.SucceededIndexes; text != nil {
			at := at.Child("succeededIndexes")
			if len(*text) > maxSuccessIndexes {
				errs = append(errs, field.TooLong(at, *text, maxSuccessIndexes))
			}
			var err error
			if indexes, err = countIndexes(*text, api.ValueOf(spec.Completions)); err != nil {
				errs = append(errs, field.Invalid(at, *text, fmt.Sprintf("error parsing succeededIndexes: %s", err)))
			}
		}
		if c := r.SucceededCount; c != nil {
			errs = append(errs, nonNegative(c, at.Child("succeededCount"))...)
			if most := api.ValueOf(spec.Completions); *c > most {
				errs = append(errs, field.Invalid(at.Child("succeededCount"), *c, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", most)))
			}
			if r.SucceededIndexes != nil && *c > indexes {
				errs = append(errs, field.Invalid(at.Child("succeededCount"), *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", indexes)))
			}
		}
	}
	return errs
}

// countIndexes counts the indexes in a text such as "0,2-4". They must be in ascending order and
// less than completions.
func countIndexes(text string, completions int32) (int32, error) {
	all, err := parseIndexes(text, int(completions))
	if err != nil {
		return 0, err
	}
	count := 0
	for _, x := range all {
		count += x.to - x.from + 1
	}
	return int32(count), nil
}

// validateUncounted validates status.uncountedTerminatedPods: the UIDs of terminated pods that the
// controller has not added to the counters yet must be set and unique.
func validateUncounted(pods *batchv1.UncountedTerminatedPods, path *field.Path) field.ErrorList {
	if pods == nil {
		return nil
	}
	var errs field.ErrorList
	seen := map[types.UID]bool{}
	check := func(list []types.UID, path *field.Path) {
		for i, uid := range list {
			switch {
			case uid == "":
				errs = append(errs, field.Invalid(path.Index(i), uid, "must not be empty"))
			case seen[uid]:
				errs = append(errs, field.Duplicate(path.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	check(pods.Succeeded, path.Child("succeeded"))
	check(pods.Failed, path.Child("failed"))
	return errs
}

// validateCronJob validates a CronJob. old is the stored object, or nil for a new one. A time zone that did not change
// is not validated again. A time zone inside the schedule is only allowed if the stored schedule is the same and the
// field timeZone is not set.
func validateCronJob(c *batchv1.CronJob, old *batchv1.CronJob) field.ErrorList {
	path := field.NewPath("spec")
	spec := &c.Spec
	var errs field.ErrorList
	schedule := path.Child("schedule")
	switch {
	case spec.Schedule == "":
		errs = append(errs, field.Required(schedule, "").MarkCoveredByDeclarative())
	case strings.Contains(spec.Schedule, "TZ"):
		if old == nil || old.Spec.Schedule != spec.Schedule {
			errs = append(errs, field.Invalid(schedule, spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		} else if spec.TimeZone != nil {
			errs = append(errs, field.Invalid(schedule, spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		}
	default:
		if _, err := parseSchedule(spec.Schedule); err != nil {
			errs = append(errs, field.Invalid(schedule, spec.Schedule, err.Error()))
		}
	}
	errs = append(errs, nonNegative(spec.StartingDeadlineSeconds, path.Child("startingDeadlineSeconds"))...)
	if old == nil || !apiequality.Semantic.DeepEqual(spec.TimeZone, old.Spec.TimeZone) {
		errs = append(errs, validateTimeZone(spec.TimeZone, path.Child("timeZone"))...)
	}
	policies := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}
	switch at := path.Child("concurrencyPolicy"); {
	case spec.ConcurrencyPolicy == "":
		errs = append(errs, field.Required(at, ""))
	case !slices.Contains(policies, spec.ConcurrencyPolicy):
		errs = append(errs, field.NotSupported(at, spec.ConcurrencyPolicy, policies))
	}
	template := path.Child("jobTemplate", "spec")
	errs = append(errs, validateJobBase(&spec.JobTemplate.Spec, template)...)
	if spec.JobTemplate.Spec.Selector != nil {
		errs = append(errs, field.Invalid(template.Child("selector"), spec.JobTemplate.Spec.Selector, "`selector` will be auto-generated"))
	}
	if api.ValueOf(spec.JobTemplate.Spec.ManualSelector) {
		errs = append(errs, field.NotSupported(template.Child("manualSelector"), true, []string{"nil", "false"}))
	}
	errs = append(errs, nonNegative(spec.SuccessfulJobsHistoryLimit, path.Child("successfulJobsHistoryLimit"))...)
	return append(errs, nonNegative(spec.FailedJobsHistoryLimit, path.Child("failedJobsHistoryLimit"))...)
}
