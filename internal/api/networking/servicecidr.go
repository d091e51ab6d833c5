package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api"
)

// serviceCIDR returns the kind ServiceCIDR, from whose ranges, one per IP family, the API server
// allocates cluster IPs of Services.
func serviceCIDR() api.Kind[*networkingv1.ServiceCIDR] {
	return api.Kind[*networkingv1.ServiceCIDR]{
		Names:   api.Names{Kind: "ServiceCIDR", Plural: "servicecidrs"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *networkingv1.ServiceCIDR { return &networkingv1.ServiceCIDR{} },
		NewList: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		PrepareCreate: func(_ context.Context, c *networkingv1.ServiceCIDR) {
			c.Status = networkingv1.ServiceCIDRStatus{}
		},
		Validate: func(_ context.Context, c *networkingv1.ServiceCIDR) field.ErrorList {
			return validateCIDRs(&c.Spec, field.NewPath("spec", "cidrs"))
		},
		Update: api.KindUpdate[*networkingv1.ServiceCIDR]{
			Prepare: func(_ context.Context, c, old *networkingv1.ServiceCIDR) {
				old.Status.DeepCopyInto(&c.Status)
			},
			Validate: func(_ context.Context, c, old *networkingv1.ServiceCIDR) field.ErrorList {
				return validateCIDRsUpdate(&c.Spec, &old.Spec, field.NewPath("spec", "cidrs"))
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*networkingv1.ServiceCIDR]{
			"status": {
				Prepare: func(_ context.Context, c, old *networkingv1.ServiceCIDR) {
					old.Spec.DeepCopyInto(&c.Spec)
					metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]),
			api.AgeColumn,
		},
		Row: func(c *networkingv1.ServiceCIDR) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), api.Age(c.CreationTimestamp)}
		},
	}
}

// validateCIDRs validates the CIDRs of a ServiceCIDR: one, or one for each IP family.
func validateCIDRs(spec *networkingv1.ServiceCIDRSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch n := len(spec.CIDRs); {
	case n == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(path, *spec, "may only hold up to 2 values")}
	}
	for i, cidr := range spec.CIDRs {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), cidr)...)
	}
	if len(spec.CIDRs) == 2 {
		family := netutils.IPFamilyOfCIDRString(spec.CIDRs[0])
		if family == netutils.IPFamilyOfCIDRString(spec.CIDRs[1]) && family != netutils.IPFamilyUnknown {
			errs = append(errs, field.Invalid(path, spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
	}
	return errs
}

// validateCIDRsUpdate validates an update of the ranges. An update may only add a range of the
// second IP family.
func validateCIDRsUpdate(spec, old *networkingv1.ServiceCIDRSpec, path *field.Path) field.ErrorList {
	is, was := spec.CIDRs, old.CIDRs
	if len(is) != len(was) && (len(was) != 1 || len(is) != 2) {
		return field.ErrorList{field.Invalid(path, is, apivalidation.FieldImmutableErrorMsg)}
	}
	var errs field.ErrorList
	for i := range was {
		if is[i] != was[i] {
			errs = append(errs, field.Invalid(path.Index(i), is[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	if len(is) > len(was) {
		errs = append(errs, validateCIDRs(spec, path)...)
	}
	return errs
}
