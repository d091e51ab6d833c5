package apps

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

const noMatch = "`selector` does not match template `labels`"

// nonNegative checks that numbers, which are fields below path, are not negative.
func nonNegative(path *field.Path, numbers ...number) field.ErrorList {
	var errs field.ErrorList
	for _, n := range numbers {
		errs = append(errs, apivalidation.ValidateNonnegativeField(n.value, path.Child(n.name))...)
	}
	return errs
}

// number is a numeric field to validate: its name below the path of the validated object, and its
// value.
type number struct {
	name  string
	value int64
}

// optional returns a number for nonNegative from a field that may be nil. A nil field counts as
// zero, which is valid.
func optional[T int32 | int64](name string, p *T) number { return number{name, int64(api.ValueOf(p))} }

// count returns the field name with the value n, for the validation by nonNegative. It is for int32 fields that are not
// pointers; optional is for pointers.
func count(name string, n int32) number { return number{name, int64(n)} }

// notAbove checks that n, the field name of a status, is at most most. msg is the error message.
func notAbove(path *field.Path, name string, n, most int32, msg string) field.ErrorList {
	if n <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child(name), n, msg)}
}

// notDecremented checks that an update does not decrease or remove status.collisionCount, with
// which controllers avoid name collisions.
func notDecremented(is, was *int32) field.ErrorList {
	if was == nil || (is != nil && *is >= *was) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("status", "collisionCount"), api.ValueOf(is), "cannot be decremented")}
}

// nameWarnings returns a warning for a new object whose name is not a DNS label, because its pods
// get names and hostnames with this prefix. old is nil on create; for updates, nameWarnings returns
// nil. O is the pointer type of the kind.
func nameWarnings[T any, O interface {
	*T
	metav1.Object
}](obj, old O) []string {
	if old != nil {
		return nil
	}
	msgs := validation.IsDNS1123Label(obj.GetName())
	if len(msgs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
}

// validateSelector validates the required pod selector of a Deployment, ReplicaSet or StatefulSet.
// empty is the error message for a selector that selects everything.
func validateSelector(s *metav1.LabelSelector, path *field.Path, empty string) field.ErrorList {
	if s == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, s, empty))
	}
	return errs
}

// selectorString returns the table cell of a selector, or "<invalid>".
func selectorString(s *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return selector.String()
}

// lower returns a kind in the form in which tables show the kind of an owner, such as
// "replicaset.apps".
func lower(kind schema.GroupKind) string { return strings.ToLower(kind.String()) }

// scaleSelector returns a selector in the text form of the scale subresource's status, or "" if it
// is invalid.
func scaleSelector(s *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return ""
	}
	return selector.String()
}

// validateReplicaTemplate validates the pod template t of a Deployment or ReplicaSet, whose labels
// must match selector. spec is the path of the Deployment's or ReplicaSet's spec.
func validateReplicaTemplate(t *corev1.PodTemplateSpec, selector *metav1.LabelSelector, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("template")
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return field.ErrorList{field.Invalid(spec.Child("selector"), selector, "invalid label selector")}
	}
	if !s.Empty() && !s.Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("metadata", "labels"), t.Labels, noMatch))
	}
	errs = append(errs, pod.ValidateTemplate(t, path)...)
	errs = append(errs, validateAlways(t, path)...)
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicaSet is not Supported"))
	}
	return errs
}

// validateAlways checks that the restart policy of a pod template is Always, the only one that
// these controllers support.
func validateAlways(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	if t.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child("spec", "restartPolicy"), t.Spec.RestartPolicy,
		[]corev1.RestartPolicy{corev1.RestartPolicyAlways})}
}

// validateIntOrPercent checks that a number or percentage is valid and not negative.
func validateIntOrPercent(v intstr.IntOrString, path *field.Path) field.ErrorList {
	switch v.Type {
	case intstr.String:
		var errs field.ErrorList
		for _, msg := range validation.IsValidPercent(v.StrVal) {
			errs = append(errs, field.Invalid(path, v, msg))
		}
		return errs
	case intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntValue()), path)
	}
	return field.ErrorList{field.Invalid(path, v, "must be an integer or percentage (e.g '5%%')")}
}

// validateAtMost100Percent checks that a percentage is at most 100. Numbers are accepted.
func validateAtMost100Percent(v intstr.IntOrString, path *field.Path) field.ErrorList {
	if percent, is := percentage(v); is && percent > 100 {
		return field.ErrorList{field.Invalid(path, v, "must not be greater than 100%")}
	}
	return nil
}

// percentage returns the number before the percent sign. ok is false if v is not a percentage.
func percentage(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, 100, false)
	return n, err == nil
}

// amount returns the number of v or, if v is a percentage, the number before the percent sign. It
// returns 0 if v is nil.
func amount(v *intstr.IntOrString) int {
	if v == nil {
		return 0
	}
	if percent, is := percentage(*v); is {
		return percent
	}
	return v.IntValue()
}
