package former

import (
	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1alpha1 "k8s.io/api/rbac/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rbacVersions returns the readers of RBAC kinds in v1alpha1. Their rules have other protobuf field
// numbers, so that decoding them as v1 would grant other permissions, and their subjects have an
// apiVersion instead of an API group.
func rbacVersions() []version {
	v1, alpha := rbacv1.SchemeGroupVersion, rbacv1alpha1.SchemeGroupVersion
	return []version{
		{"Role", v1, alpha, convertByName[rbacv1alpha1.Role, *rbacv1alpha1.Role, *rbacv1.Role](nil)},
		{"ClusterRole", v1, alpha, convertByName[rbacv1alpha1.ClusterRole, *rbacv1alpha1.ClusterRole, *rbacv1.ClusterRole](nil)},
		{"RoleBinding", v1, alpha, convertByName(func(old *rbacv1alpha1.RoleBinding, now *rbacv1.RoleBinding) error {
			now.Subjects = subjects(old.Subjects)
			return nil
		})},
		{"ClusterRoleBinding", v1, alpha, convertByName(func(old *rbacv1alpha1.ClusterRoleBinding, now *rbacv1.ClusterRoleBinding) error {
			now.Subjects = subjects(old.Subjects)
			return nil
		})},
	}
}

// subjects converts the subjects of a v1alpha1 binding. The user "*" becomes the group system:authenticated.
func subjects(old []rbacv1alpha1.Subject) []rbacv1.Subject {
	var out []rbacv1.Subject
	for _, s := range old {
		now := rbacv1.Subject{Kind: s.Kind, Name: s.Name, Namespace: s.Namespace}
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
		case rbacv1.UserKind, rbacv1.GroupKind:
			now.APIGroup = rbacv1.GroupName
		default:
			if gv, err := schema.ParseGroupVersion(s.APIVersion); err == nil {
				now.APIGroup = gv.Group
			}
		}
		if now.Kind == rbacv1.UserKind && now.Name == "*" {
			// It matched all authenticated users, but not anonymous ones.
			now.Kind, now.Name = rbacv1.GroupKind, "system:authenticated"
		}
		out = append(out, now)
	}
	return out
}
