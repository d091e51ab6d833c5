package core

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
)

func replicationController() api.Kind[*corev1.ReplicationController] {
	spec, status := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	return api.Kind[*corev1.ReplicationController]{
		Names: api.Names{
			Kind:       "ReplicationController",
			Plural:     "replicationcontrollers",
			ShortNames: []string{"rc"},
			Categories: []string{"all"},
		},
		Version:      "v1",
		Scope:        api.Namespaced,
		StoragePath:  "controllers",
		DeclaredName: true,
		New:          func() *corev1.ReplicationController { return &corev1.ReplicationController{} },
		NewList:      func() runtime.Object { return &corev1.ReplicationControllerList{} },
		Default:      defaultReplicationController,
		PrepareCreate: func(_ context.Context, rc *corev1.ReplicationController) {
			rc.Status = corev1.ReplicationControllerStatus{}
			rc.Generation = 1
			if rc.Spec.Template != nil {
				pod.DropDisabled(&rc.Spec.Template.Spec, nil)
			}
		},
		Validate: func(_ context.Context, rc *corev1.ReplicationController) field.ErrorList {
			return validateReplicationController(rc)
		},
		Warnings: replicationControllerWarnings,
		Update: api.KindUpdate[*corev1.ReplicationController]{
			Prepare: func(_ context.Context, rc, old *corev1.ReplicationController) {
				old.Status.DeepCopyInto(&rc.Status)
				rc.Generation = old.Generation
				if rc.Spec.Template != nil {
					var before *corev1.PodSpec
					if old.Spec.Template != nil {
						before = &old.Spec.Template.Spec
					}
					pod.DropDisabled(&rc.Spec.Template.Spec, before)
				}
				if !apiequality.Semantic.DeepEqual(rc.Spec, old.Spec) {
					rc.Generation++
				}
			},
			Validate: func(_ context.Context, rc, old *corev1.ReplicationController) field.ErrorList {
				return validateReplicationController(rc)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.ReplicationController]{
			"status": {
				Prepare: func(_ context.Context, rc, old *corev1.ReplicationController) {
					old.Spec.DeepCopyInto(&rc.Spec)
				},
				Validate:    validateReplicationControllerStatus,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Scale: &api.KindScale[*corev1.ReplicationController]{
			SpecReplicasPath: []string{"spec", "replicas"},
			Get: func(rc *corev1.ReplicationController) (int32, int32, string) {
				return replicas(rc), rc.Status.Replicas, labels.SelectorFromSet(rc.Spec.Selector).String()
			},
			Set: func(rc *corev1.ReplicationController, n int32) { rc.Spec.Replicas = &n },
		},
		// For compatibility, the pods of a replication controller are not deleted by default.
		DefaultPropagation: metav1.DeletePropagationOrphan,
		Fields: func(rc *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(rc.Status.Replicas))}
		},
		FieldNames: []string{"status.replicas"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Desired", "integer", spec["replicas"]),
			api.Column("Current", "integer", status["replicas"]),
			api.Column("Ready", "integer", status["readyReplicas"]),
			api.AgeColumn,
			api.WideColumn("Containers", "string", "Names of each container in the template."),
			api.WideColumn("Images", "string", "Images referenced by each container in the template."),
			api.WideColumn("Selector", "string", spec["selector"]),
		},
		Row: func(rc *corev1.ReplicationController) []any {
			var containers []corev1.Container
			if rc.Spec.Template != nil {
				containers = rc.Spec.Template.Spec.Containers
			}
			names, images := formatContainers(containers)
			return []any{
				rc.Name, int64(replicas(rc)), int64(rc.Status.Replicas), int64(rc.Status.ReadyReplicas),
				api.Age(rc.CreationTimestamp), names, images, labels.FormatLabels(rc.Spec.Selector),
			}
		},
	}
}

// replicas returns the desired number of pods, one if it is not specified.
func replicas(rc *corev1.ReplicationController) int32 {
	if rc.Spec.Replicas == nil {
		return 1
	}
	return *rc.Spec.Replicas
}

// defaultReplicationController sets the defaults of a ReplicationController. Without a selector or labels, it uses the
// labels of the pod template.
func defaultReplicationController(rc *corev1.ReplicationController) {
	if rc.Spec.Replicas == nil {
		one := int32(1)
		rc.Spec.Replicas = &one
	}
	t := rc.Spec.Template
	if t == nil {
		return
	}
	if len(rc.Spec.Selector) == 0 {
		rc.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(rc.Labels) == 0 {
		rc.Labels = maps.Clone(t.Labels)
	}
	pod.DefaultTemplate(t)
}

func validateReplicationController(rc *corev1.ReplicationController) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec")
	e.NonNegative(path.Child("minReadySeconds"), int64(rc.Spec.MinReadySeconds))
	if len(rc.Spec.Selector) == 0 {
		e.Required(path.Child("selector"), "")
	}
	if rc.Spec.Replicas == nil {
		e.Required(path.Child("replicas"), "")
	} else {
		e.NonNegative(path.Child("replicas"), int64(*rc.Spec.Replicas))
	}
	t, at := rc.Spec.Template, path.Child("template")
	if t == nil {
		e.Required(at, "")
		return e.List
	}
	if len(rc.Spec.Selector) > 0 && !labels.SelectorFromSet(rc.Spec.Selector).Matches(labels.Set(t.Labels)) {
		e.Invalid(at.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
	}
	e.Add(pod.ValidateTemplate(t, at))
	validate.OneOf(e, at.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, corev1.RestartPolicyAlways)
	if t.Spec.ActiveDeadlineSeconds != nil {
		e.Forbidden(at.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicationController is not Supported")
	}
	return e.List
}

func validateReplicationControllerStatus(_ context.Context, rc, _ *corev1.ReplicationController) field.ErrorList {
	e, path, s := &validate.Errors{}, field.NewPath("status"), &rc.Status
	e.NonNegative(path.Child("replicas"), int64(s.Replicas))
	e.NonNegative(path.Child("fullyLabeledReplicas"), int64(s.FullyLabeledReplicas))
	e.NonNegative(path.Child("readyReplicas"), int64(s.ReadyReplicas))
	e.NonNegative(path.Child("availableReplicas"), int64(s.AvailableReplicas))
	e.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)
	atMost := func(name string, n, most int32, detail string) {
		if n > most {
			e.Invalid(path.Child(name), n, detail)
		}
	}
	const ofAll = "cannot be greater than status.replicas"
	atMost("fullyLabeledReplicas", s.FullyLabeledReplicas, s.Replicas, ofAll)
	atMost("readyReplicas", s.ReadyReplicas, s.Replicas, ofAll)
	atMost("availableReplicas", s.AvailableReplicas, s.Replicas, ofAll)
	atMost("availableReplicas", s.AvailableReplicas, s.ReadyReplicas, "cannot be greater than readyReplicas")
	return e.List
}

// replicationControllerWarnings returns warnings for the name and the pod template. It returns none if an update does
// not change the generation.
func replicationControllerWarnings(_ context.Context, rc, old *corev1.ReplicationController) []string {
	if old != nil && rc.Generation == old.Generation {
		return nil
	}
	var out []string
	if msgs := validation.IsDNS1123Label(rc.Name); old == nil && rc.Name != "" && len(msgs) > 0 {
		out = append(out, fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	t := rc.Spec.Template
	if old != nil {
		// As in upstream, check the stored template.
		t = old.Spec.Template
	}
	if t != nil {
		out = append(out, pod.TemplateWarnings(t, field.NewPath("spec", "template"))...)
	}
	return out
}
