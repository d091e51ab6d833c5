package rbac

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// The functions below are shared by RoleBinding and ClusterRoleBinding.

// defaultRoleRef sets the API group of a reference to a role if it is missing.
func defaultRoleRef(ref *rbacv1.RoleRef) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
}

// defaultSubjects sets the API group of users and groups if it is missing.
func defaultSubjects(subjects []rbacv1.Subject) {
	for i := range subjects {
		s := &subjects[i]
		if s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

// validateBinding validates a RoleBinding or ClusterRoleBinding. ref is its reference to a role of
// one of kinds, and old that of the stored binding, nil on create; the reference is immutable.
// namespaced is set for RoleBindings, in which service accounts need no namespace.
func validateBinding(ref, old *rbacv1.RoleRef, kinds []string, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	path := field.NewPath("roleRef")
	errs := validateRoleRef(ref, kinds)
	nameless := field.Required(path.Child("name"), "")
	exchanged := old != nil && *ref != *old
	if ref.Name == "" && exchanged {
		// The declarative validation of the name is skipped in this case, so the error is reported
		// here.
		errs = append(errs, nameless)
	}
	errs = append(errs, validateSubjects(subjects, namespaced)...)
	switch {
	case exchanged:
		errs = append(errs, field.Invalid(path, *ref, "field is immutable"))
	case ref.Name == "":
		// Declarative errors of the subjects come first.
		errs = append(errs, nameless.MarkCoveredByDeclarative())
	}
	return errs
}

func validateRoleRef(ref *rbacv1.RoleRef, kinds []string) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("roleRef")
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(path.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	known := false
	for _, k := range kinds {
		known = known || k == ref.Kind
	}
	if !known {
		errs = append(errs, field.NotSupported(path.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name != "" {
		for _, msg := range validName(ref.Name, false) {
			errs = append(errs, field.Invalid(path.Child("name"), ref.Name, msg))
		}
	}
	return errs
}

func validateSubjects(subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range subjects {
		errs = append(errs, validateSubject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

// validateSubject validates a subject of a binding. namespaced is true for a RoleBinding, whose service accounts need
// no namespace.
func validateSubject(s *rbacv1.Subject, namespaced bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "").MarkCoveredByDeclarative())
	}
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			for _, msg := range apivalidation.ValidateServiceAccountName(s.Name, false) {
				errs = append(errs, field.Invalid(path.Child("name"), s.Name, msg))
			}
		}
		if s.APIGroup != "" {
			errs = append(errs, field.NotSupported(path.Child("apiGroup"), s.APIGroup, []string{""}))
		}
		// A service account without a namespace in a RoleBinding is in the namespace of the
		// RoleBinding.
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(path.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		if s.APIGroup != rbacv1.GroupName {
			errs = append(errs, field.NotSupported(path.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
		}
	default:
		return append(errs, field.NotSupported(path.Child("kind"), s.Kind,
			[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}

func bindingColumns(kind, roleRef string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		api.NameColumn,
		api.Column("Role", "string", roleRef),
		api.AgeColumn,
		api.WideColumn("Users", "string", "Users in the "+kind),
		api.WideColumn("Groups", "string", "Groups in the "+kind),
		api.WideColumn("ServiceAccounts", "string", "ServiceAccounts in the "+kind),
	}
}

// bindingRow returns the cells of a RoleBinding or ClusterRoleBinding: its role, users, groups and service accounts.
func bindingRow(meta metav1.Object, ref *rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for i := range subjects {
		s := &subjects[i]
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{
		meta.GetName(), fmt.Sprintf("%s/%s", ref.Kind, ref.Name), api.Age(meta.GetCreationTimestamp()),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
	}
}
