package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// validateJobUpdate validates an update of the spec of a Job. Many of its fields must not change;
// validateCompletionsUpdate and validateTemplateUpdate allow some changes of the completions and the template.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	errs := validateJobSpec(&j.Spec, old.Spec.Selector, field.NewPath("spec"))
	path := field.NewPath("spec")
	immutable := func(name string, is, was any) {
		errs = append(errs, apivalidation.ValidateImmutableField(is, was, path.Child(name))...)
	}
	errs = append(errs, validateCompletionsUpdate(&j.Spec, &old.Spec, path.Child("completions"))...)
	immutable("selector", j.Spec.Selector, old.Spec.Selector)
	errs = append(errs, validateTemplateUpdate(j, old, path.Child("template"))...)
	immutable("completionMode", j.Spec.CompletionMode, old.Spec.CompletionMode)
	immutable("podFailurePolicy", j.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy)
	immutable("backoffLimitPerIndex", j.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex)
	immutable("managedBy", j.Spec.ManagedBy, old.Spec.ManagedBy)
	immutable("successPolicy", j.Spec.SuccessPolicy, old.Spec.SuccessPolicy)
	return errs
}

// validateCompletionsUpdate checks that an update does not change the completions, except those of
// an indexed Job together with its parallelism, which scales the Job.
func validateCompletionsUpdate(is, was *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if api.ValueOf(is.CompletionMode) != batchv1.IndexedCompletion {
		return apivalidation.ValidateImmutableField(is.Completions, was.Completions, path)
	}
	if apiequality.Semantic.DeepEqual(is.Completions, was.Completions) {
		return nil
	}
	if is.Completions == nil {
		return nil // reported by the validation of the spec
	}
	if is.Parallelism == nil || *is.Completions != *is.Parallelism {
		return field.ErrorList{field.Invalid(path, is.Completions,
			fmt.Sprintf("can only be modified in tandem with %s", field.NewPath("spec").Child("parallelism").String()))}
	}
	return nil
}

// validateTemplateUpdate checks that an update does not change the pod template. While a Job is
// suspended and has no active pods, its scheduling directives and resources may change.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives
// https://kep.k8s.io/5440
func validateTemplateUpdate(j, old *batchv1.Job, path *field.Path) field.ErrorList {
	was, is := old.Spec.Template.DeepCopy(), &j.Spec.Template
	if !isSuspended(old) {
		return apivalidation.ValidateImmutableField(is, was, path)
	}
	was.Spec.Affinity = withNodeAffinityOf(was.Spec.Affinity, is.Spec.Affinity)
	was.Spec.NodeSelector = is.Spec.NodeSelector
	was.Spec.Tolerations, was.Spec.SchedulingGates = is.Spec.Tolerations, is.Spec.SchedulingGates
	copyResources(was.Spec.Containers, is.Spec.Containers)
	copyResources(was.Spec.InitContainers, is.Spec.InitContainers)
	return apivalidation.ValidateImmutableField(is.Spec, was.Spec, path.Child("spec"))
}

// isSuspended reports whether a Job is suspended and the controller has acted on it: it has no
// active pods, and has either never started or has the condition Suspended.
func isSuspended(j *batchv1.Job) bool {
	suspended := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	})
	return api.ValueOf(j.Spec.Suspend) && (j.Status.StartTime == nil || suspended) && j.Status.Active == 0
}

// withNodeAffinityOf returns a copy of the affinity was with the node affinity of other, so that a
// comparison with other ignores changes of the node affinity. Both may be nil.
func withNodeAffinityOf(was, other *corev1.Affinity) *corev1.Affinity {
	out := corev1.Affinity{}
	if was != nil {
		out = *was
	}
	out.NodeAffinity = nil
	if other != nil {
		out.NodeAffinity = other.NodeAffinity
	} else if out == (corev1.Affinity{}) {
		return nil
	}
	return &out
}

// copyResources copies the resources of the containers in from to those in to, so that a comparison ignores changes of
// resources. Containers with a different name at the same position are skipped; if the lengths differ, nothing is
// copied.
func copyResources(to, from []corev1.Container) {
	if len(to) != len(from) {
		return
	}
	for i := range to {
		if to[i].Name == from[i].Name {
			to[i].Resources = from[i].Resources
		}
	}
}
