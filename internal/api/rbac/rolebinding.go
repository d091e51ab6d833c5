package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func roleBinding() api.Kind[*rbacv1.RoleBinding] {
	return api.Kind[*rbacv1.RoleBinding]{
		Names:   api.Names{Kind: "RoleBinding", Plural: "rolebindings"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList: func() runtime.Object { return &rbacv1.RoleBindingList{} },
		Default: func(b *rbacv1.RoleBinding) {
			defaultRoleRef(&b.RoleRef)
			defaultSubjects(b.Subjects)
		},

		AllowCreateOnUpdate: true,
		ValidateName:        validName,
		Validate:            func(_ context.Context, b *rbacv1.RoleBinding) field.ErrorList { return validateRoleBinding(b, nil) },
		Update: api.KindUpdate[*rbacv1.RoleBinding]{
			Validate: func(_ context.Context, b, old *rbacv1.RoleBinding) field.ErrorList {
				return validateRoleBinding(b, &old.RoleRef)
			},
		},
		Columns: bindingColumns("roleBinding", rbacv1beta1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		Row:     func(b *rbacv1.RoleBinding) []any { return bindingRow(b, &b.RoleRef, b.Subjects) },
	}
}

func validateRoleBinding(b *rbacv1.RoleBinding, old *rbacv1.RoleRef) field.ErrorList {
	return validateBinding(&b.RoleRef, old, []string{"Role", "ClusterRole"}, b.Subjects, true)
}
