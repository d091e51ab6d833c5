package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func clusterRole() api.Kind[*rbacv1.ClusterRole] {
	return api.Kind[*rbacv1.ClusterRole]{
		Names:   api.Names{Kind: "ClusterRole", Plural: "clusterroles"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList: func() runtime.Object { return &rbacv1.ClusterRoleList{} },

		AllowCreateOnUpdate: true,
		ValidateName:        validName,
		Validate:            validateClusterRole,
		Update: api.KindUpdate[*rbacv1.ClusterRole]{
			Validate: func(ctx context.Context, r, old *rbacv1.ClusterRole) field.ErrorList {
				// A role that was stored by an older version may have a selector that is not
				// allowed in a new role.
				return validateClusterRoleWith(r, clusterRoleSelectorOptions(old))
			},
		},
		Columns: api.CreatedAtColumns,
		Row:     func(r *rbacv1.ClusterRole) []any { return api.CreatedAtRow(r) },
	}
}

func validateClusterRole(_ context.Context, r *rbacv1.ClusterRole) field.ErrorList {
	return validateClusterRoleWith(r, metav1validation.LabelSelectorValidationOptions{})
}

func validateClusterRoleWith(r *rbacv1.ClusterRole, opts metav1validation.LabelSelectorValidationOptions) field.ErrorList {
	errs := validateRules(r.Rules, false)
	if r.AggregationRule == nil {
		return errs
	}
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		return append(errs, field.Required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		errs = append(errs, metav1validation.ValidateLabelSelector(&r.AggregationRule.ClusterRoleSelectors[i], opts, path.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(&r.AggregationRule.ClusterRoleSelectors[i]); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}

// clusterRoleSelectorOptions returns the options for validating the selectors of an updated aggregation rule: invalid
// label values are allowed if the stored rule has any.
func clusterRoleSelectorOptions(old *rbacv1.ClusterRole) metav1validation.LabelSelectorValidationOptions {
	strict := metav1validation.LabelSelectorValidationOptions{}
	if old.AggregationRule == nil {
		return strict
	}
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	for i := range old.AggregationRule.ClusterRoleSelectors {
		if len(metav1validation.ValidateLabelSelector(&old.AggregationRule.ClusterRoleSelectors[i], strict, path)) > 0 {
			return metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: true}
		}
	}
	return strict
}
