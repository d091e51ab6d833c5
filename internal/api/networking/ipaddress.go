package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// ipAddress returns the kind IPAddress, which marks an address as allocated. The name is the
// address. The API server writes the IPAddresses of a Service in the etcd transaction that writes
// the Service.
func ipAddress() api.Kind[*networkingv1.IPAddress] {
	return api.Kind[*networkingv1.IPAddress]{
		Names:   api.Names{Kind: "IPAddress", ListKind: "IPAddressList", Plural: "ipaddresses", ShortNames: []string{"ip"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *networkingv1.IPAddress { return &networkingv1.IPAddress{} },
		NewList: func() runtime.Object { return &networkingv1.IPAddressList{} },

		ValidateName: validIPAddressName,
		Validate: func(_ context.Context, a *networkingv1.IPAddress) field.ErrorList {
			return validateParentRef(a.Spec.ParentRef, field.NewPath("spec", "parentRef"))
		},
		Update: api.KindUpdate[*networkingv1.IPAddress]{
			AsNew: true, NewFirst: true,
			Validate: func(_ context.Context, a, old *networkingv1.IPAddress) field.ErrorList {
				var errs validate.Errors
				path := field.NewPath("spec", "parentRef")
				if apiequality.Semantic.DeepEqual(a.Spec.ParentRef, old.Spec.ParentRef) {
					return nil
				}
				errs.Add(validateParentRef(a.Spec.ParentRef, path))
				if a.Spec.ParentRef != nil {
					// Declarative validation is skipped below an immutable field.
					for _, e := range errs.List {
						e.CoveredByDeclarative = false
					}
				}
				errs.Immutable(path)
				return errs.List
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
		},
		Row: func(a *networkingv1.IPAddress) []any {
			return []any{a.Name, parentCell(a.Spec.ParentRef)}
		},
	}
}

// validIPAddressName returns the error messages of an IPAddress's name, which must be an IP address in canonical form.
func validIPAddressName(name string, _ bool) []string {
	var out []string
	for _, e := range validation.IsValidIP(nil, name) {
		out = append(out, e.Detail)
	}
	return out
}

func validateParentRef(ref *networkingv1.ParentReference, path *field.Path) field.ErrorList {
	if ref == nil {
		return field.ErrorList{field.Required(path, "").MarkCoveredByDeclarative()}
	}
	var errs field.ErrorList
	// The group of Services is the empty string, so the group is not required.
	if ref.Group != "" {
		for _, msg := range validation.IsDNS1123Subdomain(ref.Group) {
			errs = append(errs, field.Invalid(path.Child("group"), ref.Group, msg))
		}
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{{"resource", ref.Resource, true}, {"name", ref.Name, true}, {"namespace", ref.Namespace, false}} {
		if f.value == "" {
			if f.required {
				errs = append(errs, field.Required(path.Child(f.name), "").MarkCoveredByDeclarative())
			}
			continue
		}
		for _, msg := range pathvalidation.IsValidPathSegmentName(f.value) {
			errs = append(errs, field.Invalid(path.Child(f.name), f.value, msg))
		}
	}
	return errs
}

// parentCell returns the table cell of a reference to the object that uses an address, or "<none>".
func parentCell(ref *networkingv1.ParentReference) string {
	if ref == nil {
		return "<none>"
	}
	parts := []string{strings.ToLower(schema.GroupResource{Group: ref.Group, Resource: ref.Resource}.String())}
	if ref.Namespace != "" {
		parts = append(parts, ref.Namespace)
	}
	return strings.Join(append(parts, ref.Name), "/")
}
