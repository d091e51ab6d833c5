package apps

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

func statefulSet() api.Kind[*appsv1.StatefulSet] {
	return api.Kind[*appsv1.StatefulSet]{
		Names: api.Names{
			Kind:       "StatefulSet",
			Plural:     "statefulsets",
			ShortNames: []string{"sts"},
			Categories: []string{"all"},
		},
		Group:    group,
		Version:  version,
		Scope:    api.Namespaced,
		New:      func() *appsv1.StatefulSet { return &appsv1.StatefulSet{} },
		NewList:  func() runtime.Object { return &appsv1.StatefulSetList{} },
		Default:  defaultStatefulSet,
		Complete: nameClaims,
		PrepareCreate: func(_ context.Context, s *appsv1.StatefulSet) {
			pod.DropDisabled(&s.Spec.Template.Spec, nil)
			s.Status = appsv1.StatefulSetStatus{}
			s.Generation = 1
		},
		// Pods are named after the StatefulSet and have their name in a label.
		ValidateName: apivalidation.NameIsDNSLabel,
		Validate: func(_ context.Context, s *appsv1.StatefulSet) field.ErrorList {
			return validateStatefulSetSpec(&s.Spec, statefulSetChecks{create: true}, field.NewPath("spec"))
		},
		Warnings: func(_ context.Context, s, old *appsv1.StatefulSet) []string {
			var warnings []string
			if old == nil || s.Generation != old.Generation {
				warnings = pod.TemplateWarnings(&s.Spec.Template, field.NewPath("spec", "template"))
			}
			claims := field.NewPath("spec", "volumeClaimTemplates")
			for i := range s.Spec.VolumeClaimTemplates {
				at := claims.Index(i)
				if old != nil {
					at = at.Child("Spec")
				}
				warnings = append(warnings, volume.ClaimSpecWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, at.Child("resources"))...)
			}
			if s.Spec.RevisionHistoryLimit != nil && *s.Spec.RevisionHistoryLimit < 0 {
				warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
			}
			return warnings
		},
		Update: api.KindUpdate[*appsv1.StatefulSet]{
			Prepare: func(_ context.Context, s, old *appsv1.StatefulSet) {
				pod.DropDisabled(&s.Spec.Template.Spec, &old.Spec.Template.Spec)
				old.Status.DeepCopyInto(&s.Status)
				s.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(s.Spec, old.Spec) {
					s.Generation++
				}
			},
			Validate:    validateStatefulSetUpdate,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*appsv1.StatefulSet]{
			"status": {
				Prepare: func(_ context.Context, s, old *appsv1.StatefulSet) {
					old.Spec.DeepCopyInto(&s.Spec)
					s.Generation = old.Generation
				},
				Validate: func(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
					return append(validateStatefulSetStatus(&s.Status, field.NewPath("status")),
						notDecremented(s.Status.CollisionCount, old.Status.CollisionCount)...)
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Scale: &api.KindScale[*appsv1.StatefulSet]{
			SpecReplicasPath: []string{"spec", "replicas"},
			Get: func(s *appsv1.StatefulSet) (int32, int32, string) {
				return api.ValueOf(s.Spec.Replicas), s.Status.Replicas, scaleSelector(s.Spec.Selector)
			},
			Set: func(s *appsv1.StatefulSet, n int32) { s.Spec.Replicas = &n },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Ready", "string", "Number of the pod with ready state"),
			api.AgeColumn,
			api.ContainersColumn,
			api.ImagesColumn,
		},
		Row: func(s *appsv1.StatefulSet) []any {
			names, images := api.Containers(&s.Spec.Template.Spec)
			return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, api.ValueOf(s.Spec.Replicas)), api.Age(s.CreationTimestamp), names, images}
		},
	}
}

// nameClaims sets the apiVersion and kind of the volume claim templates. The protobuf encoding does
// not store them, and another value from a client must not count as a change.
func nameClaims(s *appsv1.StatefulSet) {
	for i := range s.Spec.VolumeClaimTemplates {
		s.Spec.VolumeClaimTemplates[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	pod.DefaultTemplate(&s.Spec.Template)
	nameClaims(s)
	if s.Spec.PodManagementPolicy == "" {
		s.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	strategy := &s.Spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		api.SetDefault(&strategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		api.SetDefault(&strategy.RollingUpdate.Partition, 0)
	}
	if strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && strategy.RollingUpdate != nil {
		api.SetDefault(&strategy.RollingUpdate.Partition, 0)
		api.SetDefault(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	api.SetDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	retention := s.Spec.PersistentVolumeClaimRetentionPolicy
	if retention.WhenDeleted == "" {
		retention.WhenDeleted = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if retention.WhenScaled == "" {
		retention.WhenScaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	api.SetDefault(&s.Spec.Replicas, 1)
	api.SetDefault(&s.Spec.RevisionHistoryLimit, 10)
	for i := range s.Spec.VolumeClaimTemplates {
		c := &s.Spec.VolumeClaimTemplates[i]
		api.SetDefault(&c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		if c.Status.Phase == "" {
			c.Status.Phase = corev1.ClaimPending
		}
	}
}

// statefulSetChecks selects the checks of validateStatefulSetSpec that depend on the request.
type statefulSetChecks struct {
	// create is set for a new StatefulSet, whose claim templates and service name are validated.
	create bool
	// anyPod disables the validation of the pod template's spec. It is set for updates of a
	// StatefulSet whose stored spec is invalid.
	anyPod bool
}

// validateStatefulSetSpec validates the spec of a StatefulSet. checks selects the checks that new and updated objects
// do not share. A pod must always restart its containers and must not have a deadline.
func validateStatefulSetSpec(spec *appsv1.StatefulSetSpec, checks statefulSetChecks, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	policy := path.Child("podManagementPolicy")
	switch spec.PodManagementPolicy {
	case "":
		errs = append(errs, field.Required(policy, ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(policy, spec.PodManagementPolicy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	errs = append(errs, validateRetention(spec.PersistentVolumeClaimRetentionPolicy, path.Child("persistentVolumeClaimRetentionPolicy"))...)
	if checks.create {
		e := validate.Errors{}
		for i := range spec.VolumeClaimTemplates {
			volume.ClaimSpec(&e, &spec.VolumeClaimTemplates[i].Spec, path.Child("volumeClaimTemplates").Index(i).Child("spec"))
		}
		errs = append(errs, e.List...)
	}
	errs = append(errs, nonNegative(path, optional("replicas", spec.Replicas), count("minReadySeconds", spec.MinReadySeconds))...)
	if spec.Ordinals != nil {
		errs = append(errs, nonNegative(path, count("ordinals.start", spec.Ordinals.Start))...)
	}
	if checks.create && spec.ServiceName != "" {
		for _, msg := range validation.IsDNS1123Label(spec.ServiceName) {
			errs = append(errs, field.Invalid(path.Child("serviceName"), spec.ServiceName, msg))
		}
	}
	errs = append(errs, validateSelector(spec.Selector, path.Child("selector"), "empty selector is invalid for statefulset")...)
	template := path.Child("template")
	s, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), spec.Selector, ""))
	} else {
		errs = append(errs, validateStatefulSetTemplate(spec, s, checks.anyPod, template)...)
	}
	errs = append(errs, validateAlways(&spec.Template, template)...)
	if spec.Template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(template.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in StatefulSet is not Supported"))
	}
	return errs
}

// validateStatefulSetTemplate validates the pod template in the form that the pods will have: the
// controller adds a volume for each volume claim template, and sets the hostname and subdomain. s
// is the StatefulSet's selector. If anyPod is set, only the labels and annotations are validated.
func validateStatefulSetTemplate(spec *appsv1.StatefulSetSpec, s labels.Selector, anyPod bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !s.Empty() && !s.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("metadata", "labels"), spec.Template.Labels, noMatch))
	}
	t := spec.Template.DeepCopy()
	t.Spec.Subdomain, t.Spec.Hostname = "", ""
	claims := map[string]bool{}
	var volumes []corev1.Volume
	for i := range spec.VolumeClaimTemplates {
		name := spec.VolumeClaimTemplates[i].Name
		if claims[name] {
			continue
		}
		claims[name] = true
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	for i := range t.Spec.Volumes {
		if !claims[t.Spec.Volumes[i].Name] {
			volumes = append(volumes, t.Spec.Volumes[i])
		}
	}
	t.Spec.Volumes = volumes
	if !anyPod {
		return append(errs, pod.ValidateTemplate(t, path)...)
	}
	errs = append(errs, metav1validation.ValidateLabels(t.Labels, path.Child("labels"))...)
	return append(errs, apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
}

// validateStatefulSetStrategy validates the update strategy of a StatefulSet. rollingUpdate is optional and only
// allowed for the type RollingUpdate; its maxUnavailable must be positive and at most 100 %.
func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			shown := s.RollingUpdate.DeepCopy()
			api.SetDefault(&shown.Partition, 0)
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), shown,
				fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			return nil
		}
		path = path.Child("rollingUpdate")
		errs := nonNegative(path, optional("partition", s.RollingUpdate.Partition))
		if m := s.RollingUpdate.MaxUnavailable; m != nil {
			errs = append(errs, validateIntOrPercent(*m, path.Child("maxUnavailable"))...)
			if amount(m) == 0 {
				errs = append(errs, field.Invalid(path.Child("maxUnavailable"), *m, "cannot be 0"))
			}
			errs = append(errs, validateAtMost100Percent(*m, path.Child("maxUnavailable"))...)
		}
		return errs
	}
	return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("must be '%s' or '%s'",
		appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType))}
}

// validateRetention validates when the PersistentVolumeClaims of a StatefulSet are deleted. nil is valid.
func validateRetention(p *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	const retain, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value appsv1.PersistentVolumeClaimRetentionPolicyType
	}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
		if f.value != retain && f.value != remove {
			errs = append(errs, field.NotSupported(path.Child(f.name), f.value, []appsv1.PersistentVolumeClaimRetentionPolicyType{retain, remove}))
		}
	}
	return errs
}

// validateStatefulSetUpdate validates an update of the spec of a StatefulSet. The selector, the claim templates, the
// service name and the pod management policy must not change.
func validateStatefulSetUpdate(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	// Invalid names and templates of existing StatefulSets remain valid.
	path := field.NewPath("spec")
	checks := statefulSetChecks{anyPod: len(validateStatefulSetSpec(&old.Spec, statefulSetChecks{}, nil)) > 0}
	errs := validateStatefulSetSpec(&s.Spec, checks, path)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.Selector, old.Spec.Selector, path.Child("selector"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates, path.Child("volumeClaimTemplates"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(s.Spec.ServiceName, old.Spec.ServiceName, path.Child("serviceName"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy, path.Child("podManagementPolicy"))...)
}

func validateStatefulSetStatus(s *appsv1.StatefulSetStatus, path *field.Path) field.ErrorList {
	errs := nonNegative(path,
		count("replicas", s.Replicas),
		count("readyReplicas", s.ReadyReplicas),
		count("currentReplicas", s.CurrentReplicas),
		count("updatedReplicas", s.UpdatedReplicas),
		count("availableReplicas", s.AvailableReplicas),
		number{"observedGeneration", s.ObservedGeneration},
		optional("collisionCount", s.CollisionCount))
	const msg = "cannot be greater than status.replicas"
	errs = append(errs, notAbove(path, "readyReplicas", s.ReadyReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "currentReplicas", s.CurrentReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "updatedReplicas", s.UpdatedReplicas, s.Replicas, msg)...)
	errs = append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.Replicas, msg)...)
	return append(errs, notAbove(path, "availableReplicas", s.AvailableReplicas, s.ReadyReplicas, "cannot be greater than status.readyReplicas")...)
}
