package node

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
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
		Names:   api.Names{Kind: "RuntimeClass", Plural: "runtimeclasses"},
		Group:   nodev1.GroupName,
		Version: "v1",
		Scope:   api.Cluster,
		New:     func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList: func() runtime.Object { return &nodev1.RuntimeClassList{} },

		Validate: func(_ context.Context, c *nodev1.RuntimeClass) field.ErrorList { return validateRuntimeClass(c) },
		Update: api.KindUpdate[*nodev1.RuntimeClass]{
			Validate: func(_ context.Context, c, old *nodev1.RuntimeClass) field.ErrorList {
				return apivalidation.ValidateImmutableField(c.Handler, old.Handler, field.NewPath("handler"))
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Handler", "string", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]),
			api.AgeColumn,
		},
		Row: func(c *nodev1.RuntimeClass) []any {
			return []any{c.Name, c.Handler, api.Age(c.CreationTimestamp)}
		},
	}
}

func validateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs validate.Errors
	errs.InvalidAll(field.NewPath("handler"), c.Handler, apivalidation.NameIsDNSLabel(c.Handler, false))
	if c.Overhead != nil {
		path := field.NewPath("overhead", "podFixed")
		for _, name := range slices.Sorted(maps.Keys(c.Overhead.PodFixed)) {
			errs.QualifiedName(path.Key(string(name)), string(name))
			errs.Quantity(path.Key(string(name)), name, c.Overhead.PodFixed[name])
		}
	}
	if s := c.Scheduling; s != nil {
		path := field.NewPath("scheduling")
		errs.Add(metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector")))
		pod.Tolerations(&errs, s.Tolerations, path.Child("tolerations"))
		errs.Add(validateUnique(s.Tolerations, path.Child("tolerations")))
	}
	return errs.List
}

// validateUnique checks that no toleration is there twice.
func validateUnique(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range tolerations {
		for j := range tolerations[:i] {
			if apiequality.Semantic.DeepEqual(tolerations[i], tolerations[j]) {
				errs = append(errs, field.Duplicate(path.Index(i), tolerations[i]))
				break
			}
		}
	}
	return errs
}
