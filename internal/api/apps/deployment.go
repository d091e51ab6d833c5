package apps

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

func deployment() api.Kind[*appsv1.Deployment] {
	return api.Kind[*appsv1.Deployment]{
		Names: api.Names{
			Kind:       "Deployment",
			Plural:     "deployments",
			ShortNames: []string{"deploy"},
			Categories: []string{"all"},
		},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *appsv1.Deployment { return &appsv1.Deployment{} },
		NewList: func() runtime.Object { return &appsv1.DeploymentList{} },
		Default: defaultDeployment,
		PrepareCreate: func(_ context.Context, d *appsv1.Deployment) {
			pod.DropDisabled(&d.Spec.Template.Spec, nil)
			d.Status = appsv1.DeploymentStatus{}
			d.Generation = 1
		},
		Validate: func(_ context.Context, d *appsv1.Deployment) field.ErrorList {
			return append(validateDeploymentSpec(&d.Spec, field.NewPath("spec")), validateRollback(d)...)
		},
		Warnings: func(_ context.Context, d, old *appsv1.Deployment) []string {
			if old != nil && d.Generation == old.Generation {
				return nil
			}
			return append(nameWarnings(d, old), pod.TemplateWarnings(&d.Spec.Template, field.NewPath("spec", "template"))...)
		},
		Update: api.KindUpdate[*appsv1.Deployment]{
			Prepare: func(_ context.Context, d, old *appsv1.Deployment) {
				pod.DropDisabled(&d.Spec.Template.Spec, &old.Spec.Template.Spec)
				old.Status.DeepCopyInto(&d.Status)
				// Annotations are copied to ReplicaSets by the controller, so a change of them
				// increments the generation.
				d.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) || !apiequality.Semantic.DeepEqual(d.Annotations, old.Annotations) {
					d.Generation++
				}
			},
			Validate: func(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
				return append(append(validateDeploymentSpec(&d.Spec, field.NewPath("spec")), validateRollback(d)...),
					apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*appsv1.Deployment]{
			"status": {
				Prepare: func(_ context.Context, d, old *appsv1.Deployment) {
					old.Spec.DeepCopyInto(&d.Spec)
					d.Labels = old.Labels
					d.Generation = old.Generation
				},
				Validate: func(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
					return append(validateDeploymentStatus(&d.Status, field.NewPath("status")),
						notDecremented(d.Status.CollisionCount, old.Status.CollisionCount)...)
				},
				ResetFields: [][]string{{"spec"}, {"metadata", "labels"}},
			},
		},
		Scale: &api.KindScale[*appsv1.Deployment]{
			SpecReplicasPath: []string{"spec", "replicas"},
			Get: func(d *appsv1.Deployment) (int32, int32, string) {
				return api.ValueOf(d.Spec.Replicas), d.Status.Replicas, scaleSelector(d.Spec.Selector)
			},
			Set: func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Ready", "string", "Number of the pod with ready state"),
			api.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
			api.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
			api.WideColumn("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
		},
		Row: func(d *appsv1.Deployment) []any {
			names, images := api.Containers(&d.Spec.Template.Spec)
			return []any{
				d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, api.ValueOf(d.Spec.Replicas)),
				int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), api.Age(d.CreationTimestamp),
				names, images, selectorString(d.Spec.Selector),
			}
		},
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	pod.DefaultTemplate(&d.Spec.Template)
	api.SetDefault(&d.Spec.Replicas, 1)
	strategy := &d.Spec.Strategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		api.SetDefault(&strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		api.SetDefault(&strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		api.SetDefault(&strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	api.SetDefault(&d.Spec.RevisionHistoryLimit, 10)
	api.SetDefault(&d.Spec.ProgressDeadlineSeconds, 600)
}

// validateRollback checks that the revision in the deprecated rollback annotation is not negative.
// Text that is not a number is ignored. Upstream validates an internal field, so the path in the
// error is spec.rollback.
func validateRollback(d *appsv1.Deployment) field.ErrorList {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	if err != nil {
		return nil
	}
	return nonNegative(field.NewPath("spec", "rollback"), number{"version", n})
}

func validateDeploymentSpec(spec *appsv1.DeploymentSpec, path *field.Path) field.ErrorList {
	errs := nonNegative(path, optional("replicas", spec.Replicas))
	errs = append(errs, validateSelector(spec.Selector, path.Child("selector"), "empty selector is invalid for deployment")...)
	errs = append(errs, validateReplicaTemplate(&spec.Template, spec.Selector, path)...)
	errs = append(errs, validateDeploymentStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonNegative(path,
		count("minReadySeconds", spec.MinReadySeconds),
		optional("revisionHistoryLimit", spec.RevisionHistoryLimit),
		optional("progressDeadlineSeconds", spec.ProgressDeadlineSeconds))...)
	if p := spec.ProgressDeadlineSeconds; p != nil && *p <= spec.MinReadySeconds {
		errs = append(errs, field.Invalid(path.Child("progressDeadlineSeconds"), *p, "must be greater than minReadySeconds"))
	}
	return errs
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	rolling := path.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(rolling, "may not be specified when strategy `type` is '"+string(s.Type)+"'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(rolling, "this should be defaulted and never be nil")}
		}
		return validateRollingUpdate(s.RollingUpdate, rolling)
	}
	shown := s.DeepCopy()
	if r := shown.RollingUpdate; r != nil {
		// Upstream shows missing values as zero.
		unavailable, surge := api.ValueOf(r.MaxUnavailable), api.ValueOf(r.MaxSurge)
		r.MaxUnavailable, r.MaxSurge = &unavailable, &surge
	}
	return field.ErrorList{field.NotSupported(path, shown,
		[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType})}
}

// validateRollingUpdate validates the rolling update of a Deployment. maxUnavailable and maxSurge must not both be 0;
// maxUnavailable must be at most 100 %.
func validateRollingUpdate(r *appsv1.RollingUpdateDeployment, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	unavailable, surge := api.ValueOf(r.MaxUnavailable), api.ValueOf(r.MaxSurge)
	errs = append(errs, validateIntOrPercent(unavailable, path.Child("maxUnavailable"))...)
	errs = append(errs, validateIntOrPercent(surge, path.Child("maxSurge"))...)
	if amount(&unavailable) == 0 && amount(&surge) == 0 {
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, validateAtMost100Percent(unavailable, path.Child("maxUnavailable"))...)
}

func validateDeploymentStatus(s *appsv1.DeploymentStatus, path *field.Path) field.ErrorList {
	errs := nonNegative(path,
		number{"observedGeneration", s.ObservedGeneration},
		count("replicas", s.Replicas),
		count("updatedReplicas", s.UpdatedReplicas),
		count("readyReplicas", s.ReadyReplicas),
		count("availableReplicas", s.AvailableReplicas),
		count("unavailableReplicas", s.UnavailableReplicas),
		optional("terminatingReplicas", s.TerminatingReplicas),
		optional("collisionCount", s.CollisionCount))
	const msg = "cannot be greater than status.replicas"
	errs = append(errs, notAbove(path, "updatedReplicas", s.UpdatedReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "readyReplicas", s.ReadyReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.Replicas, msg)...)
	return append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.ReadyReplicas, "cannot be greater than readyReplicas")...)
}
