package networking

import (
	"context"
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// maxController is the maximum length of a controller name.
const maxController = 250

func ingressClass() api.Kind[*networkingv1.IngressClass] {
	return api.Kind[*networkingv1.IngressClass]{
		Names:   api.Names{Kind: "IngressClass", Plural: "ingressclasses"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *networkingv1.IngressClass { return &networkingv1.IngressClass{} },
		NewList: func() runtime.Object { return &networkingv1.IngressClassList{} },
		Default: func(c *networkingv1.IngressClass) {
			if p := c.Spec.Parameters; p != nil && p.Scope == nil {
				scope := networkingv1.IngressClassParametersReferenceScopeCluster
				p.Scope = &scope
			}
		},
		PrepareCreate: func(_ context.Context, c *networkingv1.IngressClass) { c.Generation = 1 },
		Validate: func(_ context.Context, c *networkingv1.IngressClass) field.ErrorList {
			return append(validateController(c.Spec.Controller, field.NewPath("spec", "controller")),
				validateClassParameters(c.Spec.Parameters, field.NewPath("spec", "parameters"))...)
		},
		Update: api.KindUpdate[*networkingv1.IngressClass]{
			AsNew: true,
			Prepare: func(_ context.Context, c, old *networkingv1.IngressClass) {
				c.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(c.Spec, old.Spec) {
					c.Generation++
				}
			},
			Validate: func(_ context.Context, c, old *networkingv1.IngressClass) field.ErrorList {
				path := field.NewPath("spec", "controller")
				errs := apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller, path)
				errs = append(errs, validateController(c.Spec.Controller, path)...)
				return append(errs, validateClassParameters(c.Spec.Parameters, field.NewPath("spec", "parameters"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Controller", "string", "Controller that is responsible for handling this class"),
			api.Column("Parameters", "string", "A reference to a resource with additional parameters"),
			api.AgeColumn,
		},
		Row: func(c *networkingv1.IngressClass) []any {
			parameters := "<none>"
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{c.Name, c.Spec.Controller, parameters, api.Age(c.CreationTimestamp)}
		},
	}
}

func validateController(controller string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(controller) > maxController {
		errs = append(errs, field.TooLong(path, controller, maxController))
	}
	return append(errs, validation.IsDomainPrefixedPath(path, controller)...)
}

func validateClassParameters(p *networkingv1.IngressClassParametersReference, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	segment := func(at *field.Path, value string) {
		for _, msg := range pathvalidation.IsValidPathSegmentName(value) {
			errs = append(errs, field.Invalid(at, value, msg))
		}
	}
	if p.APIGroup != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*p.APIGroup) {
			errs = append(errs, field.Invalid(path.Child("apiGroup"), *p.APIGroup, msg))
		}
	}
	if p.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "").MarkCoveredByDeclarative())
	} else {
		segment(path.Child("kind"), p.Kind)
	}
	if p.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "").MarkCoveredByDeclarative())
	} else {
		segment(path.Child("name"), p.Name)
	}
	const cluster, namespace = networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace
	if p.Scope == nil {
		return append(errs, field.Required(path.Child("scope"), ""))
	}
	switch *p.Scope {
	case namespace:
		if p.Namespace == nil {
			errs = append(errs, field.Required(path.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
		} else {
			for _, msg := range apivalidation.ValidateNamespaceName(*p.Namespace, false) {
				errs = append(errs, field.Invalid(path.Child("namespace"), *p.Namespace, msg))
			}
		}
	case cluster:
		if p.Namespace != nil {
			errs = append(errs, field.Forbidden(path.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("scope"), *p.Scope, []string{cluster, namespace}))
	}
	return errs
}

// join returns a table cell with the values, joined with commas. If there are more than most, it
// contains only the first most values and the number of omitted ones.
func join(values []string, most int) string {
	if len(values) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(values[:most], ","), len(values)-most)
	}
	return strings.Join(values, ",")
}
