package batch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

// The labels of a Job's pods before the batch.kubernetes.io/ labels existed. Pods still have both.
const (
	legacyJobName = "job-name"
	legacyUID     = "controller-uid"
)

func job() api.Kind[*batchv1.Job] {
	return api.Kind[*batchv1.Job]{
		Names:   api.Names{Kind: "Job", Plural: "jobs", Categories: []string{"all"}},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *batchv1.Job { return &batchv1.Job{} },
		NewList: func() runtime.Object { return &batchv1.JobList{} },
		Default: defaultJob,
		PrepareCreate: func(_ context.Context, j *batchv1.Job) {
			pod.DropDisabled(&j.Spec.Template.Spec, nil)
			dropScheduling(&j.Spec, nil)
			generateSelector(j)
			j.Status = batchv1.JobStatus{}
			j.Generation = 1
		},
		Validate: func(_ context.Context, j *batchv1.Job) field.ErrorList { return validateJob(j) },
		Warnings: func(_ context.Context, j, old *batchv1.Job) []string {
			var warnings []string
			if old == nil {
				if msgs := validation.IsDNS1123Label(j.Name); len(msgs) != 0 {
					warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
				}
			}
			if old == nil || j.Generation != old.Generation {
				warnings = append(warnings, jobSpecWarnings(&j.Spec, field.NewPath("spec"))...)
			}
			return warnings
		},
		Update: api.KindUpdate[*batchv1.Job]{
			Prepare: func(_ context.Context, j, old *batchv1.Job) {
				pod.DropDisabled(&j.Spec.Template.Spec, &old.Spec.Template.Spec)
				dropScheduling(&j.Spec, &old.Spec)
				old.Status.DeepCopyInto(&j.Status)
				j.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(j.Spec, old.Spec) {
					j.Generation++
				}
			},
			Validate:    func(_ context.Context, j, old *batchv1.Job) field.ErrorList { return validateJobUpdate(j, old) },
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*batchv1.Job]{
			"status": {
				Prepare: func(_ context.Context, j, old *batchv1.Job) {
					old.Spec.DeepCopyInto(&j.Spec)
					j.Generation = old.Generation
				},
				Validate:    func(_ context.Context, j, old *batchv1.Job) field.ErrorList { return validateJobStatus(j, old) },
				ResetFields: [][]string{{"spec"}},
			},
		},
		// For compatibility, the pods of a job are not deleted by default.
		DefaultPropagation: metav1.DeletePropagationOrphan,
		DeleteWarning: "child pods are preserved by default when jobs are deleted; " +
			"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
		Fields: func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
		FieldNames: []string{"status.successful"},
		NoField:    "field label %q not supported for Job",
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Status", "string", "Status of the job."),
			api.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
			api.Column("Duration", "string", "Time required to complete the job."),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
			api.WideColumn("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Row: jobRow,
	}
}

// defaultJob sets the defaults of a Job. A Job without labels gets those of its pod template, and shares their map.
func defaultJob(j *batchv1.Job) {
	spec := &j.Spec
	pod.DefaultTemplate(&spec.Template)
	// Without both fields, the job runs one pod once. With only one of them, it is a work queue.
	if spec.Completions == nil && spec.Parallelism == nil {
		api.SetDefault(&spec.Completions, 1)
	}
	api.SetDefault(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		api.SetDefault(&spec.BackoffLimit, math.MaxInt32)
	}
	api.SetDefault(&spec.BackoffLimit, 6)
	if len(j.Labels) == 0 {
		j.Labels = spec.Template.Labels
	}
	api.SetDefault(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	api.SetDefault(&spec.Suspend, false)
	if spec.PodFailurePolicy != nil {
		defaultFailurePolicy(spec)
		api.SetDefault(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	api.SetDefault(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	api.SetDefault(&spec.ManualSelector, false)
}

// defaultFailurePolicy sets the default status of pod conditions in a failure policy.
func defaultFailurePolicy(spec *batchv1.JobSpec) {
	if spec.PodFailurePolicy == nil {
		return
	}
	for _, r := range spec.PodFailurePolicy.Rules {
		for i := range r.OnPodConditions {
			if c := &r.OnPodConditions[i]; c.Status == "" {
				c.Status = corev1.ConditionTrue
			}
		}
	}
}

// dropScheduling clears the field for workload scheduling, an alpha feature, unless the stored spec
// was has the field set. was is nil on create. (KEP-5547)
func dropScheduling(spec, was *batchv1.JobSpec) {
	if was == nil || was.Scheduling == nil {
		spec.Scheduling = nil
	}
}

// generateSelector sets the selector of a new Job to its UID and adds the matching labels to the
// pod template, unless the user manages the selector. If the Job's labels were defaulted from the
// template, both share the map, so the Job also gets the labels, by which clients find Jobs.
func generateSelector(j *batchv1.Job) {
	if api.ValueOf(j.Spec.ManualSelector) {
		return
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	labels := j.Spec.Template.Labels
	// Keep labels set by the client; validation rejects them if they are wrong.
	for key, value := range map[string]string{
		legacyJobName: j.Name, batchv1.JobNameLabel: j.Name,
		legacyUID: string(j.UID), batchv1.ControllerUidLabel: string(j.UID),
	} {
		if _, found := labels[key]; !found {
			labels[key] = value
		}
	}
	api.SetDefault(&j.Spec.Selector, metav1.LabelSelector{})
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, found := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !found {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// Limits of indexed Jobs: the number of completions above which, with more than this parallelism, the status of a Job
// can become too large.
const (
	warnCompletions = 100_000
	warnParallelism = 10_000
)

// jobSpecWarnings returns warnings for an indexed Job that is too large for its status, and for the pod template.
func jobSpecWarnings(spec *batchv1.JobSpec, path *field.Path) []string {
	var out []string
	if api.ValueOf(spec.CompletionMode) == batchv1.IndexedCompletion && api.ValueOf(spec.Completions) > warnCompletions && api.ValueOf(spec.Parallelism) > warnParallelism {
		out = append(out, path.String()+": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
			"Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
	return append(out, pod.TemplateWarnings(&spec.Template, path.Child("template"))...)
}

// jobRow returns the cells of a Job: among others its state, completions and duration, which is empty before the start.
func jobRow(j *batchv1.Job) []any {
	var completions string
	switch parallelism := api.ValueOf(j.Spec.Parallelism); {
	case j.Spec.Completions != nil:
		completions = fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallelism > 1:
		completions = fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallelism)
	default:
		completions = fmt.Sprintf("%d/1", j.Status.Succeeded)
	}
	took := ""
	if start := j.Status.StartTime; start != nil {
		if end := j.Status.CompletionTime; end != nil {
			took = duration.HumanDuration(end.Sub(start.Time))
		} else {
			took = duration.HumanDuration(time.Since(start.Time))
		}
	}
	names, images := api.Containers(&j.Spec.Template.Spec)
	return []any{
		j.Name, jobState(j), completions, took, api.Age(j.CreationTimestamp), names, images,
		metav1.FormatLabelSelector(j.Spec.Selector),
	}
}

// jobState returns the state of a Job for the table, from its conditions and its deletion timestamp: Running if no
// other applies.
func jobState(j *batchv1.Job) string {
	has := func(t batchv1.JobConditionType) bool {
		for i := range j.Status.Conditions {
			if c := &j.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}
