package pod

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// validatePod validates a pod with the rules that apply to both new and updated pods: its spec, and the annotations
// that have a meaning for pods, such as the pod deletion cost and AppArmor profiles. It does not validate the rest of
// the metadata.
func validatePod(p *corev1.Pod) field.ErrorList {
	c := newChecker(&p.Spec, true, p.Name)
	path := field.NewPath("spec")
	checkAnnotations(&c.Errors, c.spec, p.Annotations, field.NewPath("metadata", "annotations"))
	c.checkSpec(path)
	if p.Spec.ServiceAccountName == "" {
		for i := range p.Spec.Volumes {
			projected := p.Spec.Volumes[i].Projected
			if projected == nil {
				continue
			}
			for j := range projected.Sources {
				if projected.Sources[j].ServiceAccountToken != nil {
					c.Forbidden(path.Child("volumes").Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken"),
						"must not be specified when serviceAccountName is not set")
				}
			}
		}
	}
	for i := range p.Spec.Containers {
		checkImageSpace(&c.Errors, &p.Spec.Containers[i], path.Child("containers").Index(i))
	}
	for i := range p.Spec.InitContainers {
		checkImageSpace(&c.Errors, &p.Spec.InitContainers[i], path.Child("initContainers").Index(i))
	}
	return c.List
}

func validateCreate(p *corev1.Pod) field.ErrorList {
	c := newChecker(&p.Spec, true, p.Name)
	c.List = validatePod(p)
	path := field.NewPath("spec")
	if len(p.Spec.EphemeralContainers) > 0 {
		c.Forbidden(path.Child("ephemeralContainers"), "cannot be set on create")
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		c.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	checkProfilesMatch(&c.Errors, c.spec, &p.ObjectMeta, path)
	return c.List
}

// validateChanged is like validatePod for the update of the pod old. It tolerates violations of
// rules that upstream introduced later if old violates them too.
func validateChanged(p, old *corev1.Pod) validate.Errors {
	return validate.Errors{List: validate.Tolerate(validatePod(p), func() field.ErrorList { return validatePod(old) })}
}

// checkAnnotationUpdate rejects adding, changing or removing the annotations of AppArmor profiles
// and mirror pods.
func checkAnnotationUpdate(e *validate.Errors, p, old *corev1.Pod) {
	path := field.NewPath("metadata", "annotations")
	for _, k := range slices.Sorted(maps.Keys(old.Annotations)) {
		if value, ok := p.Annotations[k]; ok && value == old.Annotations[k] {
			continue
		}
		if strings.HasPrefix(k, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			e.Forbidden(path.Key(k), "may not remove or update AppArmor annotations")
		}
		if k == corev1.MirrorPodAnnotationKey {
			e.Forbidden(path.Key(k), "may not remove or update mirror pod annotation")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(p.Annotations)) {
		if _, ok := old.Annotations[k]; ok {
			continue
		}
		if strings.HasPrefix(k, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			e.Forbidden(path.Key(k), "may not add AppArmor annotations")
		}
		if k == corev1.MirrorPodAnnotationKey {
			e.Forbidden(path.Key(k), "may not add mirror pod annotation")
		}
	}
}

var updatable = strings.Join([]string{
	"`spec.containers[*].image`",
	"`spec.initContainers[*].image`",
	"`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// validateUpdate validates an update of the pod itself, in which most of the spec is immutable.
func validateUpdate(p, old *corev1.Pod) field.ErrorList {
	e := validateChanged(p, old)
	checkAnnotationUpdate(&e, p, old)
	path := field.NewPath("spec")
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		e.Forbidden(path.Child("containers"), "pod updates may not add or remove containers")
		return e.List
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		e.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers")
		return e.List
	}
	if !checkDeadlineUpdate(&e, p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds")) {
		return e.List
	}
	checkTolerationUpdate(&e, p.Spec.Tolerations, old.Spec.Tolerations, path.Child("tolerations"))
	for i, gate := range p.Spec.SchedulingGates {
		if !slices.Contains(old.Spec.SchedulingGates, gate) {
			e.Forbidden(path.Child("schedulingGates").Index(i).Child("name"),
				fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name))
		}
	}
	if apiequality.Semantic.DeepEqual(p.Spec, old.Spec) {
		return e.List
	}
	spec := withoutAllowedChanges(&e, p, old, path)
	if !apiequality.Semantic.DeepEqual(*spec, old.Spec) {
		e.Forbidden(path, fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable, validate.Diff(&old.Spec, spec)))
	}
	return e.List
}

// withoutAllowedChanges returns a copy of p's spec in which all mutable fields have their old
// value, so that all remaining differences to the old spec are forbidden. For a pod with scheduling
// gates, it also validates changes of the node selection.
func withoutAllowedChanges(e *validate.Errors, p, old *corev1.Pod, path *field.Path) *corev1.PodSpec {
	spec := p.Spec.DeepCopy()
	for i := range spec.Containers {
		spec.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range spec.InitContainers {
		spec.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	spec.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	spec.SchedulingGates = old.Spec.SchedulingGates
	spec.Tolerations = old.Spec.Tolerations
	if was, is := old.Spec.TerminationGracePeriodSeconds, spec.TerminationGracePeriodSeconds; was != nil && *was < 0 && is != nil && *is == 1 {
		spec.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		checkGatedUpdate(e, spec, &old.Spec, path)
	}
	return spec
}

// checkGatedUpdate validates changes of the node selector and node affinity of a pod with
// scheduling gates, which may only restrict the node selection further. It sets both fields in spec
// to those of old.
func checkGatedUpdate(e *validate.Errors, spec, old *corev1.PodSpec, path *field.Path) {
	for k, v := range old.NodeSelector {
		if now, ok := spec.NodeSelector[k]; !ok || now != v {
			e.Invalid(path.Child("nodeSelector"), spec.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	spec.NodeSelector = old.NodeSelector

	var was, is *corev1.NodeAffinity
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if spec.Affinity != nil {
		is = spec.Affinity.NodeAffinity
	}
	if apiequality.Semantic.DeepEqual(was, is) {
		return
	}
	checkNodeAffinityUpdate(e, is, was, path.Child("affinity", "nodeAffinity", required, "nodeSelectorTerms"))
	switch {
	case spec.Affinity == nil:
		spec.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && spec.Affinity.PodAffinity == nil && spec.Affinity.PodAntiAffinity == nil:
		spec.Affinity = nil
	default:
		spec.Affinity.NodeAffinity = was
	}
}

// checkNodeAffinityUpdate checks that an update of the required node affinity only makes it stricter: requirements may
// be added to a term, but not changed or removed. Terms may only be added if there were none, and a term without
// requirements, which matches no node, must not get any.
func checkNodeAffinityUpdate(e *validate.Errors, is, was *corev1.NodeAffinity, path *field.Path) {
	terms := func(a *corev1.NodeAffinity) []corev1.NodeSelectorTerm {
		if a == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			return nil
		}
		return a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	before, after := terms(was), terms(is)
	if len(before) > 0 && len(before) != len(after) {
		e.Invalid(path, after, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	for i := range before {
		if !onlyAdds(after[i].MatchExpressions, before[i].MatchExpressions) || !onlyAdds(after[i].MatchFields, before[i].MatchFields) ||
			// A term without requirements matches nothing, which must not change.
			len(before[i].MatchExpressions)+len(before[i].MatchFields) == 0 && len(after[i].MatchExpressions)+len(after[i].MatchFields) > 0 {
			e.Invalid(path.Index(i), after[i], "only additions are allowed (no mutations or deletions)")
		}
	}
}

// onlyAdds reports whether is begins with the requirements of was.
func onlyAdds(is, was []corev1.NodeSelectorRequirement) bool {
	return len(is) >= len(was) && apiequality.Semantic.DeepEqual(is[:len(was)], was)
}

// checkDeadlineUpdate checks that an update only sets or reduces the active deadline. It returns
// false if it has found an error after which upstream stops validation.
func checkDeadlineUpdate(e *validate.Errors, is, was *int64, at *field.Path) bool {
	switch {
	case is == nil:
		if was != nil {
			e.Invalid(at, is, "must not update from a positive integer to nil value")
		}
	case *is < 0 || *is > math.MaxInt32:
		e.Invalid(at, *is, validation.InclusiveRangeError(0, math.MaxInt32))
		return false
	case was != nil && *was < *is:
		e.Invalid(at, *is, "must be less than or equal to previous value")
		return false
	}
	return true
}

// checkTolerationUpdate allows adding tolerations and changing their seconds.
func checkTolerationUpdate(e *validate.Errors, is, was []corev1.Toleration, path *field.Path) {
	for _, old := range was {
		if !slices.ContainsFunc(is, func(t corev1.Toleration) bool {
			t.TolerationSeconds = old.TolerationSeconds
			return t == old
		}) {
			e.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
}

// validateEphemeralUpdate checks that ephemeral containers are only added. Static pods cannot get any.
func validateEphemeralUpdate(p, old *corev1.Pod) field.ErrorList {
	if _, static := old.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	e := validateChanged(p, old)
	checkAnnotationUpdate(&e, p, old)
	path := field.NewPath("spec", "ephemeralContainers")
	for _, was := range old.Spec.EphemeralContainers {
		i := slices.IndexFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == was.Name })
		switch {
		case i < 0:
			e.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name))
		case !apiequality.Semantic.DeepEqual(was, p.Spec.EphemeralContainers[i]):
			e.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, validate.Diff(&was, &p.Spec.EphemeralContainers[i])))
		}
	}
	return e.List
}
