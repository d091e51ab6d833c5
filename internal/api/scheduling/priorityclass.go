package scheduling

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// Values and names of the built-in PriorityClasses system-cluster-critical and system-node-critical.
const (
	// HighestUserPriority is the maximum value of PriorityClasses that users define.
	HighestUserPriority = int32(1000000000)
	// SystemPrefix is the name prefix of the built-in PriorityClasses. Users cannot create classes with this prefix.
	SystemPrefix = "system-"
	// SystemClusterCriticalValue is the value of system-cluster-critical.
	SystemClusterCriticalValue = 2 * HighestUserPriority
	// SystemNodeCriticalValue is the value of system-node-critical.
	SystemNodeCriticalValue = SystemClusterCriticalValue + 1000
)

// SystemPriorityClasses returns the two built-in classes, which the API server creates at startup.
// The caller owns the objects.
func SystemPriorityClasses() []*schedulingv1.PriorityClass {
	policy := corev1.PreemptLowerPriority
	class := func(name string, value int32, description string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{
			ObjectMeta:       metav1.ObjectMeta{Name: name},
			Value:            value,
			Description:      description,
			PreemptionPolicy: &policy,
		}
	}
	return []*schedulingv1.PriorityClass{
		class("system-node-critical", SystemNodeCriticalValue,
			"Used for system critical pods that must not be moved from their current node."),
		class("system-cluster-critical", SystemClusterCriticalValue,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
	}
}

func priorityClass() api.Kind[*schedulingv1.PriorityClass] {
	return api.Kind[*schedulingv1.PriorityClass]{
		Names: api.Names{
			Kind:       "PriorityClass",
			ListKind:   "PriorityClassList",
			Plural:     "priorityclasses",
			ShortNames: []string{"pc"},
		},
		Group:   schedulingv1.GroupName,
		Version: "v1",
		Scope:   api.Cluster,
		New:     func() *schedulingv1.PriorityClass { return &schedulingv1.PriorityClass{} },
		NewList: func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		Default: func(c *schedulingv1.PriorityClass) {
			if c.PreemptionPolicy == nil {
				policy := corev1.PreemptLowerPriority
				c.PreemptionPolicy = &policy
			}
		},
		PrepareCreate: func(_ context.Context, c *schedulingv1.PriorityClass) { c.Generation = 1 },
		Validate:      validatePriorityClass,
		Update:        api.KindUpdate[*schedulingv1.PriorityClass]{Validate: validatePriorityClassUpdate},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"]),
			api.Column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"]),
			api.AgeColumn,
			api.Column("PreemptionPolicy", "string", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
		},
		Row: func(c *schedulingv1.PriorityClass) []any {
			policy := ""
			if c.PreemptionPolicy != nil {
				policy = string(*c.PreemptionPolicy)
			}
			return []any{c.Name, int64(c.Value), c.GlobalDefault, api.Age(c.CreationTimestamp), policy}
		},
	}
}

func validatePriorityClass(_ context.Context, c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, SystemPrefix) {
		if err := knownSystemClass(c); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with '"+SystemPrefix+"' prefix are reserved for system use only. error: "+err.Error()))
		}
	} else if c.Value > HighestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %v", HighestUserPriority)))
	}
	if c.PreemptionPolicy != nil {
		errs = append(errs, validatePreemptionPolicy(*c.PreemptionPolicy)...)
	}
	return errs
}

func validatePreemptionPolicy(policy corev1.PreemptionPolicy) field.ErrorList {
	path := field.NewPath("preemptionPolicy")
	switch policy {
	case corev1.PreemptLowerPriority, corev1.PreemptNever:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, policy, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever})}
}

// knownSystemClass returns nil if c equals a built-in class, whose name has the prefix
// SystemPrefix, and otherwise an error with the difference.
func knownSystemClass(c *schedulingv1.PriorityClass) error {
	for _, known := range SystemPriorityClasses() {
		if known.Name != c.Name {
			continue
		}
		if known.Value != c.Value {
			return fmt.Errorf("value of %v PriorityClass must be %v", known.Name, known.Value)
		}
		if known.GlobalDefault != c.GlobalDefault {
			return fmt.Errorf("globalDefault of %v PriorityClass must be %v", known.Name, known.GlobalDefault)
		}
		return nil
	}
	return fmt.Errorf("%v is not a known system priority class", c.Name)
}

// validatePriorityClassUpdate checks that the value of a PriorityClass and its preemption policy, if both objects have
// one, do not change.
func validatePriorityClassUpdate(_ context.Context, c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	if was, is := old.PreemptionPolicy, c.PreemptionPolicy; was != nil && is != nil && *was != *is {
		errs = append(errs, field.Invalid(field.NewPath("preemptionPolicy"), is, "field is immutable"))
	}
	return errs
}
