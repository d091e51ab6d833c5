package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func role() api.Kind[*rbacv1.Role] {
	validate := func(r *rbacv1.Role) field.ErrorList { return validateRules(r.Rules, true) }
	return api.Kind[*rbacv1.Role]{
		Names:   api.Names{Kind: "Role", Plural: "roles"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList: func() runtime.Object { return &rbacv1.RoleList{} },

		AllowCreateOnUpdate: true,
		ValidateName:        validName,
		Validate:            func(_ context.Context, r *rbacv1.Role) field.ErrorList { return validate(r) },
		Update: api.KindUpdate[*rbacv1.Role]{
			Validate: func(_ context.Context, r, _ *rbacv1.Role) field.ErrorList { return validate(r) },
		},
		Columns: api.CreatedAtColumns,
		Row:     func(r *rbacv1.Role) []any { return api.CreatedAtRow(r) },
	}
}
