package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

const (
	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

// checkAffinity validates the node affinity, the pod affinity and the pod anti-affinity of a pod, each of which may be
// missing.
func checkAffinity(e *validate.Errors, spec *corev1.PodSpec, at *field.Path) {
	a := spec.Affinity
	if a == nil {
		return
	}
	if n := a.NodeAffinity; n != nil {
		p := at.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			e.NodeSelector(p.Child(required), n.RequiredDuringSchedulingIgnoredDuringExecution)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			t, p := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], p.Child(preferred).Index(i)
			checkWeight(e, t.Weight, p)
			e.NodeSelectorTerm(p.Child("preference"), &t.Preference, false)
		}
	}
	if p := a.PodAffinity; p != nil {
		checkPodAffinity(e, p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))
	}
	if p := a.PodAntiAffinity; p != nil {
		checkPodAffinity(e, p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity"))
	}
}

func checkWeight(e *validate.Errors, weight int32, at *field.Path) {
	if weight <= 0 || weight > 100 {
		e.Invalid(at.Child("weight"), weight, "must be in the range 1-100")
	}
}

func checkPodAffinity(e *validate.Errors, must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, at *field.Path) {
	for i := range must {
		checkPodAffinityTerm(e, &must[i], at.Child(required).Index(i))
	}
	for i := range should {
		p := at.Child(preferred).Index(i)
		checkWeight(e, should[i].Weight, p)
		checkPodAffinityTerm(e, &should[i].PodAffinityTerm, p.Child("podAffinityTerm"))
	}
}

// checkPodAffinityTerm validates a term of pod affinity or anti-affinity. The topology key is required, and no key may
// be in both matchLabelKeys and mismatchLabelKeys.
func checkPodAffinityTerm(e *validate.Errors, t *corev1.PodAffinityTerm, at *field.Path) {
	e.LabelSelector(at.Child("labelSelector"), t.LabelSelector)
	e.LabelSelector(at.Child("namespaceSelector"), t.NamespaceSelector)
	for _, ns := range t.Namespaces {
		e.InvalidAll(at.Child("namespace"), ns, apivalidation.ValidateNamespaceName(ns, false))
	}
	checkLabelKeys(e, t.MatchLabelKeys, t.LabelSelector, at.Child("matchLabelKeys"))
	checkLabelKeys(e, t.MismatchLabelKeys, t.LabelSelector, at.Child("mismatchLabelKeys"))
	checkMergedKeys(e, t.MatchLabelKeys, t.LabelSelector, at)
	for i, key := range t.MatchLabelKeys {
		if slices.Contains(t.MismatchLabelKeys, key) {
			e.Invalid(at.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
	if t.TopologyKey == "" {
		e.Required(at.Child("topologyKey"), "can not be empty")
	}
	e.LabelName(at.Child("topologyKey"), t.TopologyKey)
}

// checkLabelKeys validates the label keys of a term or a constraint. They are only allowed together with a selector.
func checkLabelKeys(e *validate.Errors, keys []string, selector *metav1.LabelSelector, path *field.Path) {
	if len(keys) == 0 {
		return
	}
	if selector == nil {
		e.Forbidden(path, "must not be specified when labelSelector is not set")
		return
	}
	for i, key := range keys {
		e.LabelName(path.Index(i), key)
	}
}

// checkMergedKeys rejects keys in matchLabelKeys that are also in the label selector s at the path
// at. Creation has already merged matchLabelKeys into s, so a key that the client specified in both
// places occurs twice in s.
func checkMergedKeys(e *validate.Errors, keys []string, s *metav1.LabelSelector, at *field.Path) {
	if s == nil || len(keys) == 0 {
		return
	}
	places := make(map[string]int, len(keys))
	for i, key := range keys {
		places[key] = i
	}
	for i, x := range s.MatchExpressions {
		index, matched := places[x.Key]
		_, label := s.MatchLabels[x.Key]
		if matched && (label || slices.ContainsFunc(s.MatchExpressions[:i],
			func(o metav1.LabelSelectorRequirement) bool { return o.Key == x.Key })) {
			e.Invalid(at.Index(index), x.Key, "exists in both matchLabelKeys and labelSelector")
		}
	}
}

// checkSpreadConstraints validates the topology spread constraints of a pod or template. No two may have the same
// topology key and whenUnsatisfiable. minDomains requires DoNotSchedule. The rules of matchLabelKeys differ between
// pods, whose selectors contain the merged keys, and templates.
func (c *checker) checkSpreadConstraints(path *field.Path) {
	constraints := c.spec.TopologySpreadConstraints
	for i := range constraints {
		t, at := &constraints[i], path.Index(i)
		if t.MaxSkew <= 0 {
			c.Invalid(at.Child("maxSkew"), t.MaxSkew, "must be greater than zero")
		}
		if t.TopologyKey == "" {
			c.Required(at.Child("topologyKey"), "can not be empty")
		}
		validate.OneOf(&c.Errors, at.Child("whenUnsatisfiable"), t.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		if slices.ContainsFunc(constraints[i+1:], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == t.TopologyKey && o.WhenUnsatisfiable == t.WhenUnsatisfiable
		}) {
			c.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", t.TopologyKey, t.WhenUnsatisfiable))
		}
		if t.MinDomains != nil {
			if *t.MinDomains <= 0 {
				c.Invalid(at.Child("minDomains"), t.MinDomains, "must be greater than zero")
			}
			if t.WhenUnsatisfiable != corev1.DoNotSchedule {
				c.Invalid(at.Child("minDomains"), t.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, t.WhenUnsatisfiable))
			}
		}
		if p := t.NodeAffinityPolicy; p != nil {
			validate.OneOf(&c.Errors, at.Child("nodeAffinityPolicy"), *p, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		}
		if p := t.NodeTaintsPolicy; p != nil {
			validate.OneOf(&c.Errors, at.Child("nodeTaintsPolicy"), *p, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		}
		if c.isPod {
			checkLabelKeys(&c.Errors, t.MatchLabelKeys, t.LabelSelector, at.Child("matchLabelKeys"))
			checkMergedKeys(&c.Errors, t.MatchLabelKeys, t.LabelSelector, at)
		} else {
			checkSpreadKeys(&c.Errors, t, at.Child("matchLabelKeys"))
		}
		c.LabelSelector(at.Child("labelSelector"), t.LabelSelector)
	}
}

// checkSpreadKeys validates matchLabelKeys of a topology spread constraint in a pod template. They
// are not merged into the selector there, so a key must not be in the selector.
func checkSpreadKeys(e *validate.Errors, t *corev1.TopologySpreadConstraint, path *field.Path) {
	if len(t.MatchLabelKeys) > 0 && t.LabelSelector == nil {
		e.Forbidden(path, "must not be specified when labelSelector is not set")
	}
	for i, key := range t.MatchLabelKeys {
		e.LabelName(path.Index(i), key)
		if t.LabelSelector == nil {
			continue
		}
		_, seen := t.LabelSelector.MatchLabels[key]
		if seen || slices.ContainsFunc(t.LabelSelector.MatchExpressions, func(x metav1.LabelSelectorRequirement) bool { return x.Key == key }) {
			e.Invalid(path.Index(i), key, "exists in both matchLabelKeys and labelSelector")
		}
	}
}

// Tolerations validates the list of tolerations at path, in the spec of a pod or the scheduling of
// a RuntimeClass.
func Tolerations(e *validate.Errors, tolerations []corev1.Toleration, path *field.Path) {
	for i := range tolerations {
		t, at := &tolerations[i], path.Index(i)
		if t.Key != "" {
			e.LabelName(at.Child("key"), t.Key)
		} else if t.Operator != corev1.TolerationOpExists {
			e.Invalid(at.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			e.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
				e.Invalid(at.Child("operator"), t.Value, strings.Join(msgs, ";"))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				e.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'")
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			// Numeric comparison is an alpha feature, but upstream's message mentions its
			// operators.
			e.Add(field.ErrorList{field.NotSupported(at.Child("operator"), t.Operator, []corev1.TolerationOperator{
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt,
			})})
		default:
			validate.OneOf(e, at.Child("operator"), t.Operator,
				corev1.TolerationOpEqual, corev1.TolerationOpExists)
		}
		if t.Effect != "" {
			TaintEffect(e, t.Effect, at.Child("effect"))
		}
	}
}

// TaintEffect checks that effect is one of the three effects of taints. at is the path of the field, in a node's taint
// or a toleration.
func TaintEffect(e *validate.Errors, effect corev1.TaintEffect, at *field.Path) {
	validate.OneOf(e, at, effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
}
