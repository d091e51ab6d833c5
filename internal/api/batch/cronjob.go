package batch

import (
	"context"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

// maxCronJobName is the maximum length of a CronJob's name: the controller appends 11 characters to
// get the name of a Job, which is limited to 63.
const maxCronJobName = 63 - 11

func cronJob() api.Kind[*batchv1.CronJob] {
	spec, status := batchv1beta1.CronJobSpec{}.SwaggerDoc(), batchv1beta1.CronJobStatus{}.SwaggerDoc()
	return api.Kind[*batchv1.CronJob]{
		Names:   api.Names{Kind: "CronJob", Plural: "cronjobs", ShortNames: []string{"cj"}, Categories: []string{"all"}},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *batchv1.CronJob { return &batchv1.CronJob{} },
		NewList: func() runtime.Object { return &batchv1.CronJobList{} },
		Default: func(c *batchv1.CronJob) {
			pod.DefaultTemplate(&c.Spec.JobTemplate.Spec.Template)
			defaultFailurePolicy(&c.Spec.JobTemplate.Spec)
			if c.Spec.ConcurrencyPolicy == "" {
				c.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
			}
			api.SetDefault(&c.Spec.Suspend, false)
			api.SetDefault(&c.Spec.SuccessfulJobsHistoryLimit, 3)
			api.SetDefault(&c.Spec.FailedJobsHistoryLimit, 1)
		},
		PrepareCreate: func(_ context.Context, c *batchv1.CronJob) {
			pod.DropDisabled(&c.Spec.JobTemplate.Spec.Template.Spec, nil)
			dropScheduling(&c.Spec.JobTemplate.Spec, nil)
			c.Status = batchv1.CronJobStatus{}
			c.Generation = 1
		},
		ValidateName: func(name string, prefix bool) []string {
			msgs := apivalidation.NameIsDNSSubdomain(name, prefix)
			if len(name) > maxCronJobName {
				msgs = append(msgs, "must be no more than 52 characters")
			}
			return msgs
		},
		Validate: func(_ context.Context, c *batchv1.CronJob) field.ErrorList { return validateCronJob(c, nil) },
		Warnings: func(_ context.Context, c, old *batchv1.CronJob) []string {
			var warnings []string
			if old == nil || c.Generation != old.Generation {
				warnings = jobSpecWarnings(&c.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))
			}
			if !strings.Contains(c.Spec.Schedule, "TZ") {
				return warnings
			}
			text := "CRON_TZ or TZ used in schedule is not officially supported"
			if old != nil {
				text = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead"
			}
			warnings = append(warnings, text+", see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
			return warnings
		},
		Update: api.KindUpdate[*batchv1.CronJob]{
			Prepare: func(_ context.Context, c, old *batchv1.CronJob) {
				pod.DropDisabled(&c.Spec.JobTemplate.Spec.Template.Spec, &old.Spec.JobTemplate.Spec.Template.Spec)
				dropScheduling(&c.Spec.JobTemplate.Spec, &old.Spec.JobTemplate.Spec)
				old.Status.DeepCopyInto(&c.Status)
				c.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(c.Spec, old.Spec) {
					c.Generation++
				}
			},
			Validate:    func(_ context.Context, c, old *batchv1.CronJob) field.ErrorList { return validateCronJob(c, old) },
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*batchv1.CronJob]{
			"status": {
				AnyFinalizers: true,
				Prepare: func(_ context.Context, c, old *batchv1.CronJob) {
					old.Spec.DeepCopyInto(&c.Spec)
					c.Generation = old.Generation
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Schedule", "string", spec["schedule"]),
			api.Column("Timezone", "string", spec["timeZone"]),
			api.Column("Suspend", "boolean", spec["suspend"]),
			api.Column("Active", "integer", status["active"]),
			api.Column("Last Schedule", "string", status["lastScheduleTime"]),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
			api.WideColumn("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Row: cronJobRow,
	}
}

// cronJobRow returns the cells of a CronJob.
func cronJobRow(c *batchv1.CronJob) []any {
	last, zone, suspend := "<none>", "<none>", "<unset>"
	if c.Status.LastScheduleTime != nil {
		last = api.Age(*c.Status.LastScheduleTime)
	}
	if c.Spec.TimeZone != nil {
		zone = *c.Spec.TimeZone
	}
	if s := c.Spec.Suspend; s != nil {
		suspend = "False"
		if *s {
			suspend = "True"
		}
	}
	names, images := api.Containers(&c.Spec.JobTemplate.Spec.Template.Spec)
	return []any{
		c.Name, c.Spec.Schedule, zone, suspend, int64(len(c.Status.Active)), last, api.Age(c.CreationTimestamp),
		names, images, metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector),
	}
}

// Constraints on the parts of a time zone name, which slashes separate: the maximum length and the allowed characters
// (https://www.iana.org/time-zones).
const (
	maxZonePart = 14
	zoneLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_+"
)

func validateTimeZone(zone *string, path *field.Path) field.ErrorList {
	switch {
	case zone == nil:
		return nil
	case *zone == "":
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || len(part) == 0 || len(part) > maxZonePart || strings.Trim(part, zoneLetters) != "" {
			return field.ErrorList{field.Invalid(path, zone, "unknown time zone "+*zone)}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*zone, "Local") {
		errs = append(errs, field.Invalid(path, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		errs = append(errs, field.Invalid(path, zone, err.Error()))
	}
	return errs
}
