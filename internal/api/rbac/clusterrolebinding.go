package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func clusterRoleBinding() api.Kind[*rbacv1.ClusterRoleBinding] {
	return api.Kind[*rbacv1.ClusterRoleBinding]{
		Names:   api.Names{Kind: "ClusterRoleBinding", Plural: "clusterrolebindings"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList: func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		Default: func(b *rbacv1.ClusterRoleBinding) {
			defaultRoleRef(&b.RoleRef)
			defaultSubjects(b.Subjects)
		},

		AllowCreateOnUpdate: true,
		ValidateName:        validName,
		Validate: func(_ context.Context, b *rbacv1.ClusterRoleBinding) field.ErrorList {
			return validateClusterRoleBinding(b, nil)
		},
		Update: api.KindUpdate[*rbacv1.ClusterRoleBinding]{
			Validate: func(_ context.Context, b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateClusterRoleBinding(b, &old.RoleRef)
			},
		},
		Columns: bindingColumns("clusterRoleBinding", rbacv1beta1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
		Row:     func(b *rbacv1.ClusterRoleBinding) []any { return bindingRow(b, &b.RoleRef, b.Subjects) },
	}
}

func validateClusterRoleBinding(b *rbacv1.ClusterRoleBinding, old *rbacv1.RoleRef) field.ErrorList {
	return validateBinding(&b.RoleRef, old, []string{"ClusterRole"}, b.Subjects, false)
}
