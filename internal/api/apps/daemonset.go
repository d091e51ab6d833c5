package apps

import (
	"context"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
)

func daemonSet() api.Kind[*appsv1.DaemonSet] {
	doc := appsv1.DaemonSetStatus{}.SwaggerDoc()
	return api.Kind[*appsv1.DaemonSet]{
		Names: api.Names{
			Kind:       "DaemonSet",
			Plural:     "daemonsets",
			ShortNames: []string{"ds"},
			Categories: []string{"all"},
		},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *appsv1.DaemonSet { return &appsv1.DaemonSet{} },
		NewList: func() runtime.Object { return &appsv1.DaemonSetList{} },
		Readable: func(ds *appsv1.DaemonSet) error {
			_, err := parseTemplateGeneration(ds)
			return err
		},
		Default: defaultDaemonSet,
		PrepareCreate: func(_ context.Context, ds *appsv1.DaemonSet) {
			pod.DropDisabled(&ds.Spec.Template.Spec, nil)
			ds.Status = appsv1.DaemonSetStatus{}
			ds.Generation = 1
			setTemplateGeneration(ds, max(templateGeneration(ds), 1))
		},
		Validate: func(_ context.Context, ds *appsv1.DaemonSet) field.ErrorList {
			return validateDaemonSetSpec(&ds.Spec, nil, field.NewPath("spec"))
		},
		Warnings: func(_ context.Context, ds, old *appsv1.DaemonSet) []string {
			if old != nil && templateGeneration(ds) == templateGeneration(old) {
				return nil
			}
			return pod.TemplateWarnings(&ds.Spec.Template, field.NewPath("spec", "template"))
		},
		Update: api.KindUpdate[*appsv1.DaemonSet]{
			Prepare: func(_ context.Context, ds, old *appsv1.DaemonSet) {
				pod.DropDisabled(&ds.Spec.Template.Spec, &old.Spec.Template.Spec)
				old.Status.DeepCopyInto(&ds.Status)
				ds.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(ds.Spec, old.Spec) {
					ds.Generation++
				}
				n := templateGeneration(old)
				if !apiequality.Semantic.DeepEqual(ds.Spec.Template, old.Spec.Template) {
					n++
				}
				setTemplateGeneration(ds, n)
			},
			Validate: func(_ context.Context, ds, old *appsv1.DaemonSet) field.ErrorList {
				path := field.NewPath("spec")
				return append(apivalidation.ValidateImmutableField(ds.Spec.Selector, old.Spec.Selector, path.Child("selector")),
					validateDaemonSetSpec(&ds.Spec, old.Spec.Selector, path)...)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*appsv1.DaemonSet]{
			"status": {
				Prepare: func(_ context.Context, ds, old *appsv1.DaemonSet) {
					old.Spec.DeepCopyInto(&ds.Spec)
					setTemplateGeneration(ds, templateGeneration(old))
					ds.Generation = old.Generation
				},
				Validate: func(_ context.Context, ds, old *appsv1.DaemonSet) field.ErrorList {
					return append(validateDaemonSetStatus(&ds.Status, field.NewPath("status")),
						notDecremented(ds.Status.CollisionCount, old.Status.CollisionCount)...)
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Desired", "integer", doc["desiredNumberScheduled"]),
			api.Column("Current", "integer", doc["currentNumberScheduled"]),
			api.Column("Ready", "integer", doc["numberReady"]),
			api.Column("Up-to-date", "integer", doc["updatedNumberScheduled"]),
			api.Column("Available", "integer", doc["numberAvailable"]),
			api.Column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
			api.WideColumn("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"]),
		},
		Row: func(ds *appsv1.DaemonSet) []any {
			names, images := api.Containers(&ds.Spec.Template.Spec)
			s := &ds.Status
			return []any{
				ds.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
				int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable), labels.FormatLabels(ds.Spec.Template.Spec.NodeSelector),
				api.Age(ds.CreationTimestamp), names, images, metav1.FormatLabelSelector(ds.Spec.Selector),
			}
		},
	}
}

// templateGeneration returns the template generation, which counts the changes of the pod template,
// or 0 if it is missing or invalid. It is stored in an annotation, because apps/v1 has no field for
// it. The DaemonSet controller needs it for pods that were created by older versions.
func templateGeneration(ds *appsv1.DaemonSet) int64 {
	n, err := parseTemplateGeneration(ds)
	if err != nil {
		return 0
	}
	return n
}

// parseTemplateGeneration returns the template generation, or 0 if the annotation is missing, and an error if it is not
// a number.
func parseTemplateGeneration(ds *appsv1.DaemonSet) (int64, error) {
	text, ok := ds.Annotations[appsv1.DeprecatedTemplateGeneration]
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// setTemplateGeneration sets the annotation with the template generation.
func setTemplateGeneration(ds *appsv1.DaemonSet, n int64) {
	// Copy the map, because it may belong to a stored object.
	annotations := make(map[string]string, len(ds.Annotations)+1)
	maps.Copy(annotations, ds.Annotations)
	annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	ds.Annotations = annotations
}

func defaultDaemonSet(ds *appsv1.DaemonSet) {
	if _, ok := ds.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		// A missing annotation counts as zero, which is visible in managed fields.
		setTemplateGeneration(ds, 0)
	}
	pod.DefaultTemplate(&ds.Spec.Template)
	strategy := &ds.Spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if strategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		api.SetDefault(&strategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		api.SetDefault(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		api.SetDefault(&strategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	if r := strategy.RollingUpdate; r != nil {
		// Both numbers are shown for other strategies too.
		api.SetDefault(&r.MaxUnavailable, intstr.FromInt32(0))
		api.SetDefault(&r.MaxSurge, intstr.FromInt32(0))
	}
	api.SetDefault(&ds.Spec.RevisionHistoryLimit, 10)
}

// validateDaemonSetSpec validates a DaemonSet's spec. stored is the selector of the stored
// DaemonSet, whose invalid label values remain valid, or nil on create.
func validateDaemonSetSpec(spec *appsv1.DaemonSetSpec, stored *metav1.LabelSelector, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelSelector(spec.Selector, validate.SelectorOptions(stored), path.Child("selector"))
	template := path.Child("template")
	if s, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil && !s.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(template.Child("metadata", "labels"), spec.Template.Labels, noMatch))
	}
	if s := spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path.Child("selector"), s, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, pod.ValidateTemplate(&spec.Template, template)...)
	errs = append(errs, validateAlways(&spec.Template, template)...)
	if spec.Template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(template.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in DaemonSet is not Supported"))
	}
	errs = append(errs, nonNegative(path, count("minReadySeconds", spec.MinReadySeconds))...)
	errs = append(errs, validateDaemonSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	return append(errs, nonNegative(path, optional("revisionHistoryLimit", spec.RevisionHistoryLimit))...)
}

// validateDaemonSetStrategy validates the update strategy of a DaemonSet. For RollingUpdate, exactly one of
// maxUnavailable and maxSurge must not be 0, and both must be at most 100 %.
func validateDaemonSetStrategy(s *appsv1.DaemonSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		return field.ErrorList{field.NotSupported(path, s,
			[]appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType})}
	}
	if s.RollingUpdate == nil {
		return field.ErrorList{field.Required(path.Child("rollingUpdate"), "")}
	}
	path = path.Child("rollingUpdate")
	unavailable, surge := api.ValueOf(s.RollingUpdate.MaxUnavailable), api.ValueOf(s.RollingUpdate.MaxSurge)
	errs := validateIntOrPercent(unavailable, path.Child("maxUnavailable"))
	errs = append(errs, validateIntOrPercent(surge, path.Child("maxSurge"))...)
	errs = append(errs, validateAtMost100Percent(unavailable, path.Child("maxUnavailable"))...)
	errs = append(errs, validateAtMost100Percent(surge, path.Child("maxSurge"))...)
	switch {
	case amount(&unavailable) != 0 && amount(&surge) != 0:
		errs = append(errs, field.Invalid(path.Child("maxSurge"), s.RollingUpdate.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	case amount(&unavailable) == 0 && amount(&surge) == 0:
		errs = append(errs, field.Required(path.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetStatus(s *appsv1.DaemonSetStatus, path *field.Path) field.ErrorList {
	return nonNegative(path,
		count("currentNumberScheduled", s.CurrentNumberScheduled),
		count("numberMisscheduled", s.NumberMisscheduled),
		count("desiredNumberScheduled", s.DesiredNumberScheduled),
		count("numberReady", s.NumberReady),
		number{"observedGeneration", s.ObservedGeneration},
		count("updatedNumberScheduled", s.UpdatedNumberScheduled),
		count("numberAvailable", s.NumberAvailable),
		count("numberUnavailable", s.NumberUnavailable),
		optional("collisionCount", s.CollisionCount))
}
