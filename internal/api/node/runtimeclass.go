package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
)

func runtimeClass() api.Kind[*nodev1.RuntimeClass] {
	return api.Kind[*nodev1.RuntimeClass]{
		Names:               api.Names{Kind: "RuntimeClass", Plural: "runtimeclasses"},
		AllowCreateOnUpdate: true,
		AnyFinalizers:       true,
		Group:               nodev1.GroupName,
		Version:             "v1",
		Scope:               api.Cluster,
		New:                 func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:             func() runtime.Object { return &nodev1.RuntimeClassList{} },

		Validate:                  func(_ context.Context, c *nodev1.RuntimeClass) field.ErrorList { return validateRuntimeClass(c, nil) },
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*nodev1.RuntimeClass]{
			AsNew: true,
			Validate: func(_ context.Context, c, old *nodev1.RuntimeClass) field.ErrorList {
				var errs validate.Errors
				validate.Unchanged(&errs, field.NewPath("handler"), c.Handler, old.Handler)
				errs.Add(validateRuntimeClass(c, old))
				return errs.List
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Handler", "string", ""),
			api.AgeColumn,
		},
		Row: func(c *nodev1.RuntimeClass) []any {
			return []any{c.Name, c.Handler, api.Age(c.CreationTimestamp)}
		},
	}
}

// validateRuntimeClass validates the RuntimeClass c. old is the stored object, nil on create.
func validateRuntimeClass(c, old *nodev1.RuntimeClass) field.ErrorList {
	var errs validate.Errors
	handler := field.NewPath("handler")
	switch {
	case c.Handler == "":
		errs.Declared(field.Required(handler, ""))
	case old != nil && c.Handler != old.Handler:
		// If the immutable field has changed, the declarative validation is skipped.
		errs.InvalidAll(handler, c.Handler, apivalidation.NameIsDNSLabel(c.Handler, false))
	default:
		for _, msg := range content.IsDNS1123Label(c.Handler) {
			errs.Declared(field.Invalid(handler, c.Handler, msg).WithOrigin("format=k8s-short-name"))
		}
	}
	if c.Overhead != nil {
		pod.Limits(&errs, c.Overhead.PodFixed, field.NewPath("overhead"))
	}
	if s := c.Scheduling; s != nil {
		path := field.NewPath("scheduling")
		errs.Add(metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector")))
		pod.Tolerations(&errs, s.Tolerations, path.Child("tolerations"))
		errs.Add(validateUnique(s.Tolerations, path.Child("tolerations")))
	}
	return errs.List
}

// validateUnique checks that no two tolerations have the same key, operator, value and effect.
func validateUnique(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range tolerations {
		for j := range tolerations[:i] {
			a, b := &tolerations[i], &tolerations[j]
			if a.Key == b.Key && a.Operator == b.Operator && a.Value == b.Value && a.Effect == b.Effect {
				errs = append(errs, field.Duplicate(path.Index(i), tolerations[i]))
				break
			}
		}
	}
	return errs
}
