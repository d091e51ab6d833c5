package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

func replicaSet() api.Kind[*appsv1.ReplicaSet] {
	return api.Kind[*appsv1.ReplicaSet]{
		Names: api.Names{
			Kind:       "ReplicaSet",
			Plural:     "replicasets",
			ShortNames: []string{"rs"},
			Categories: []string{"all"},
		},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *appsv1.ReplicaSet { return &appsv1.ReplicaSet{} },
		NewList: func() runtime.Object { return &appsv1.ReplicaSetList{} },
		Default: func(rs *appsv1.ReplicaSet) {
			pod.DefaultTemplate(&rs.Spec.Template)
			api.SetDefault(&rs.Spec.Replicas, 1)
		},
		PrepareCreate: func(_ context.Context, rs *appsv1.ReplicaSet) {
			pod.DropDisabled(&rs.Spec.Template.Spec, nil)
			rs.Status = appsv1.ReplicaSetStatus{}
			rs.Generation = 1
		},
		Validate: func(_ context.Context, rs *appsv1.ReplicaSet) field.ErrorList {
			return validateReplicaSetSpec(&rs.Spec, field.NewPath("spec"))
		},
		Warnings: func(_ context.Context, rs, old *appsv1.ReplicaSet) []string {
			if old != nil && rs.Generation == old.Generation {
				return nil
			}
			return append(nameWarnings(rs, old), pod.TemplateWarnings(&rs.Spec.Template, field.NewPath("spec", "template"))...)
		},
		Update: api.KindUpdate[*appsv1.ReplicaSet]{
			Prepare: func(_ context.Context, rs, old *appsv1.ReplicaSet) {
				pod.DropDisabled(&rs.Spec.Template.Spec, &old.Spec.Template.Spec)
				old.Status.DeepCopyInto(&rs.Status)
				rs.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(rs.Spec, old.Spec) {
					rs.Generation++
				}
			},
			Validate: func(_ context.Context, rs, old *appsv1.ReplicaSet) field.ErrorList {
				return append(validateReplicaSetSpec(&rs.Spec, field.NewPath("spec")),
					apivalidation.ValidateImmutableField(rs.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*appsv1.ReplicaSet]{
			"status": {
				Prepare: func(_ context.Context, rs, old *appsv1.ReplicaSet) {
					old.Spec.DeepCopyInto(&rs.Spec)
					rs.Generation = old.Generation
				},
				Validate: func(_ context.Context, rs, _ *appsv1.ReplicaSet) field.ErrorList {
					return validateReplicaSetStatus(&rs.Status, field.NewPath("status"))
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Scale: &api.KindScale[*appsv1.ReplicaSet]{
			SpecReplicasPath: []string{"spec", "replicas"},
			Get: func(rs *appsv1.ReplicaSet) (int32, int32, string) {
				return api.ValueOf(rs.Spec.Replicas), rs.Status.Replicas, scaleSelector(rs.Spec.Selector)
			},
			Set: func(rs *appsv1.ReplicaSet, n int32) { rs.Spec.Replicas = &n },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
			api.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
			api.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
			api.WideColumn("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
		},
		Row: func(rs *appsv1.ReplicaSet) []any {
			names, images := api.Containers(&rs.Spec.Template.Spec)
			return []any{
				rs.Name, int64(api.ValueOf(rs.Spec.Replicas)), int64(rs.Status.Replicas), int64(rs.Status.ReadyReplicas),
				api.Age(rs.CreationTimestamp), names, images, metav1.FormatLabelSelector(rs.Spec.Selector),
			}
		},
	}
}

func validateReplicaSetSpec(spec *appsv1.ReplicaSetSpec, path *field.Path) field.ErrorList {
	errs := nonNegative(path, optional("replicas", spec.Replicas), count("minReadySeconds", spec.MinReadySeconds))
	// Upstream's message also says "deployment".
	errs = append(errs, validateSelector(spec.Selector, path.Child("selector"), "empty selector is invalid for deployment")...)
	return append(errs, validateReplicaTemplate(&spec.Template, spec.Selector, path)...)
}

func validateReplicaSetStatus(s *appsv1.ReplicaSetStatus, path *field.Path) field.ErrorList {
	errs := nonNegative(path,
		count("replicas", s.Replicas),
		count("fullyLabeledReplicas", s.FullyLabeledReplicas),
		count("readyReplicas", s.ReadyReplicas),
		count("availableReplicas", s.AvailableReplicas),
		optional("terminatingReplicas", s.TerminatingReplicas),
		number{"observedGeneration", s.ObservedGeneration})
	const msg = "cannot be greater than status.replicas"
	errs = append(errs, notAbove(path, "fullyLabeledReplicas", s.FullyLabeledReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "readyReplicas", s.ReadyReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.Replicas, msg)...)
	return append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.ReadyReplicas, "cannot be greater than readyReplicas")...)
}
