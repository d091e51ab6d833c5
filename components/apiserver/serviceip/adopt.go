package serviceip

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api"
)

// Adopt returns a function that adapts Services that were stored by a Kubernetes server before 1.20, when they had
// neither clusterIPs nor ipFamilies: it sets missing values of these fields when the Service is read. cidrs are the
// Service ranges of the cluster, which determine the families of headless Services.
func Adopt(cidrs []netip.Prefix) func(api.Object) {
	primary, other := corev1.IPv4Protocol, corev1.IPv6Protocol
	if len(cidrs) > 0 && cidrs[0].Addr().Is6() {
		primary, other = other, primary
	}
	return func(obj api.Object) {
		svc, ok := obj.(*corev1.Service)
		if !ok {
			return
		}
		spec := &svc.Spec
		if spec.Type == corev1.ServiceTypeExternalName {
			spec.InternalTrafficPolicy = nil
		}
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
		if !needsAddress(svc) || len(spec.IPFamilies) > 0 {
			return
		}
		switch {
		case !headless(svc):
			for _, ip := range spec.ClusterIPs {
				family := corev1.IPv4Protocol
				if netutils.IsIPv6String(ip) {
					family = corev1.IPv6Protocol
				}
				spec.IPFamilies = append(spec.IPFamilies, family)
			}
		case len(spec.Selector) == 0:
			// The endpoints are created by another component and may be of both families.
			spec.IPFamilies = []corev1.IPFamily{primary, other}
		default:
			spec.IPFamilies = []corev1.IPFamily{primary}
		}
		policy := corev1.IPFamilyPolicySingleStack
		switch len(spec.IPFamilies) {
		case 0:
			return
		case 2:
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
}
