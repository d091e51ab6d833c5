package serviceip

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// invalid returns the API error (422) for a Service with invalid fields.
func invalid(svc *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, svc.Name, errs)
}

// policyOf returns the IP family policy of a Service, or "" if it is not set.
func policyOf(svc *corev1.Service) corev1.IPFamilyPolicy {
	if svc.Spec.IPFamilyPolicy == nil {
		return ""
	}
	return *svc.Spec.IPFamilyPolicy
}

// headless reports whether a Service requests to have no cluster IP ("None").
func headless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

// needsAddress reports whether Services of the type of svc have cluster IPs or are headless. Those of type
// ExternalName do not.
func needsAddress(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

// unchangedPreference reports whether an update leaves the type, the addresses and the families of
// a PreferDualStack Service unchanged. Such a Service keeps its families even if the cluster has
// gained or lost an IP family since. was is nil if the Service is new.
func unchangedPreference(is, was *corev1.Service) bool {
	return was != nil && is.Spec.Type == was.Spec.Type && needsAddress(is) &&
		policyOf(is) == corev1.IPFamilyPolicyPreferDualStack && policyOf(was) == corev1.IPFamilyPolicyPreferDualStack &&
		slices.Equal(is.Spec.ClusterIPs, was.Spec.ClusterIPs) && slices.Equal(is.Spec.IPFamilies, was.Spec.IPFamilies)
}

// initFamilies sets missing values of ipFamilyPolicy and ipFamilies in w.obj, the new version of the Service. It does
// nothing for the type ExternalName and if the update does not concern them. It returns an error for the client if
// the policy, the families and the requested cluster IPs do not match each other or the families of the cluster. See
// https://kubernetes.io/docs/concepts/services-networking/dual-stack/#services
func (w *write) initFamilies() error {
	is, was := w.obj, w.old
	if is.Spec.Type == corev1.ServiceTypeExternalName || unchangedPreference(is, was) {
		return nil
	}
	spec := &is.Spec
	selectorless := headless(is) && len(spec.Selector) == 0
	w.defaultPolicy(selectorless)
	policy := policyOf(is)
	policyPath := field.NewPath("spec", "ipFamilyPolicy")

	var errs field.ErrorList
	if was != nil {
		if policy == corev1.IPFamilyPolicySingleStack {
			// A change of only the policy removes the second family.
			if slices.Equal(spec.ClusterIPs, was.Spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
				spec.ClusterIPs = spec.ClusterIPs[:1]
			}
			if slices.Equal(spec.IPFamilies, was.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
				spec.IPFamilies = spec.IPFamilies[:1]
			}
		} else {
			if droppedSecond(spec.ClusterIPs, was.Spec.ClusterIPs) {
				errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
			}
			if droppedSecond(spec.IPFamilies, was.Spec.IPFamilies) {
				errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
			}
		}
	}
	if policy == corev1.IPFamilyPolicySingleStack {
		if len(spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy,
				"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
		}
		if len(spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy,
				"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
		}
	}
	errs = append(errs, w.inferFamilies()...)
	if len(errs) > 0 {
		return invalid(is, errs...)
	}

	if selectorless {
		// The endpoints are created by another component and may be of a family that the cluster
		// does not have.
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{w.defaultFamily()}
		}
		if len(spec.IPFamilies) == 1 && policy != corev1.IPFamilyPolicySingleStack {
			spec.IPFamilies = append(spec.IPFamilies, other(spec.IPFamilies[0]))
		}
		return nil
	}

	if policy == corev1.IPFamilyPolicyRequireDualStack && len(w.cfg.CIDRs) < 2 {
		errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range spec.IPFamilies {
		if !w.configured(f) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return invalid(is, errs...)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{w.defaultFamily()}
	}
	if policy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && len(w.cfg.CIDRs) == 2 {
		spec.IPFamilies = append(spec.IPFamilies, other(spec.IPFamilies[0]))
	}
	return nil
}

// defaultPolicy sets a missing ipFamilyPolicy to that of the old Service, or to SingleStack. The
// default of a headless Service without a selector (selectorless) is RequireDualStack.
func (w *write) defaultPolicy(selectorless bool) {
	if w.obj.Spec.IPFamilyPolicy != nil {
		return
	}
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case w.old != nil && w.old.Spec.IPFamilyPolicy != nil:
		policy = *w.old.Spec.IPFamilyPolicy
	case selectorless:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	w.obj.Spec.IPFamilyPolicy = &policy
}

// inferFamilies appends the families of requested cluster IPs that ipFamilies lacks. It returns
// errors for those that the cluster does not have.
func (w *write) inferFamilies() field.ErrorList {
	var errs field.ErrorList
	spec := &w.obj.Spec
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			break
		}
		if i < len(spec.IPFamilies) {
			continue
		}
		f := corev1.IPv4Protocol
		if netutils.IsIPv6String(ip) {
			f = corev1.IPv6Protocol
		}
		if !w.configured(f) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", f)))
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, f)
	}
	return errs
}

// defaultFamily returns the family of the first configured range, which Services get if they
// request none.
func (a *Allocator) defaultFamily() corev1.IPFamily { return family(a.cfg.CIDRs[0].Addr()) }

// other returns the other IP family.
func other(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// droppedSecond reports whether is equals was except that the second of the two elements was
// removed.
func droppedSecond[T comparable](is, was []T) bool {
	return len(is) == 1 && len(was) == 2 && is[0] == was[0]
}
