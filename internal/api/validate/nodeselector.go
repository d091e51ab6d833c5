package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LabelSelector adds an error for each invalid requirement of the label selector s, which may be nil. at is its field
// path.
func (e *Errors) LabelSelector(at *field.Path, s *metav1.LabelSelector) {
	if s != nil {
		e.Add(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
	}
}

// LabelName adds errors if key, the value of the field at the path at, is not a valid label key.
func (e *Errors) LabelName(at *field.Path, key string) {
	e.Add(metavalidation.ValidateLabelName(key, at))
}

// NodeSelector validates a node selector, which must have at least one term.
func (e *Errors) NodeSelector(at *field.Path, s *corev1.NodeSelector) {
	terms := at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		e.Required(terms, "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		e.NodeSelectorTerm(terms.Index(i), &s.NodeSelectorTerms[i], true)
	}
}

// NodeSelectorTerm validates one term of a node selector or affinity. If values is set, the label
// values must be valid too: callers set it for required terms, but not for preferred ones.
func (e *Errors) NodeSelectorTerm(at *field.Path, t *corev1.NodeSelectorTerm, values bool) {
	for i := range t.MatchExpressions {
		nodeRequirement(e, at.Child("matchExpressions").Index(i), &t.MatchExpressions[i], values)
	}
	for i := range t.MatchFields {
		nodeField(e, at.Child("matchFields").Index(i), &t.MatchFields[i])
	}
}

// nodeRequirement validates a match on a label of the node. If values is set, the values must be valid label values.
func nodeRequirement(e *Errors, at *field.Path, r *corev1.NodeSelectorRequirement, values bool) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			e.Required(at.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			e.Forbidden(at.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			e.Required(at.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		e.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
	}
	e.LabelName(at.Child("key"), r.Key)
	if values {
		for i, v := range r.Values {
			e.InvalidAll(at.Child("values").Index(i), v, validation.IsValidLabelValue(v))
		}
	}
}

// nodeField validates a match on a field of the node. Only metadata.name is supported.
func nodeField(e *Errors, at *field.Path, r *corev1.NodeSelectorRequirement) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			e.Required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		e.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		e.Invalid(at.Child("key"), r.Key, "not a valid field selector key")
		return
	}
	for i, v := range r.Values {
		e.InvalidAll(at.Child("values").Index(i), v, apivalidation.NameIsDNSSubdomain(v, false))
	}
}

// DeprecatedNodeLabel returns the deprecation message of a node label, or an empty string.
func DeprecatedNodeLabel(key string) string {
	switch key {
	case "beta.kubernetes.io/arch":
		return `deprecated since v1.14; use "kubernetes.io/arch" instead`
	case "beta.kubernetes.io/os":
		return `deprecated since v1.14; use "kubernetes.io/os" instead`
	case corev1.LabelFailureDomainBetaRegion:
		return `deprecated since v1.17; use "topology.kubernetes.io/region" instead`
	case corev1.LabelFailureDomainBetaZone:
		return `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`
	case corev1.LabelInstanceType:
		return `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`
	}
	return ""
}

// NodeSelectorTermWarnings returns warnings for deprecated node labels in a term and, if values is
// set, for invalid label values. Callers set values for preferred terms, because validation accepts
// invalid values in them.
func NodeSelectorTermWarnings(at *field.Path, t *corev1.NodeSelectorTerm, values bool) []string {
	var out []string
	for i, x := range t.MatchExpressions {
		p := at.Child("matchExpressions").Index(i)
		if msg := DeprecatedNodeLabel(x.Key); msg != "" {
			out = append(out, fmt.Sprintf("%s: %s is %s", p.Child("key"), x.Key, msg))
		}
		if !values {
			continue
		}
		for j, v := range x.Values {
			for _, msg := range validation.IsValidLabelValue(v) {
				out = append(out, fmt.Sprintf("%s: %s is invalid, %s", p.Child("values").Index(j), v, msg))
			}
		}
	}
	return out
}
