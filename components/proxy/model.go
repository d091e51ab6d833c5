package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"hyperkube/components/proxy/rules"
)

// node is what of this node matters to which endpoints are used.
type node struct{ name, zone string }

// portsOf returns the ports of a service in one address family, with the
// endpoints to use; none when the proxy has nothing to do for it.
func portsOf(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, here node, ipv6 bool) []*rules.Port {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Labels[labelProxyName] != "" {
		return nil
	}
	var clusterIP netip.Addr
	for _, text := range clusterIPs(svc) {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() == ipv6 {
			clusterIP = addr
			break
		}
	}
	if !clusterIP.IsValid() {
		return nil
	}
	var ports []*rules.Port
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		p := &rules.Port{
			Namespace: svc.Namespace, Service: svc.Name, Name: sp.Name,
			Protocol: strings.ToLower(string(sp.Protocol)), ClusterIP: clusterIP,
			Port: uint16(sp.Port), NodePort: uint16(sp.NodePort),
			LocalInternal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
			LocalExternal: svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		}
		if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			p.Affinity = 10800
			if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
				p.Affinity = int(*c.ClientIP.TimeoutSeconds)
			}
		}
		p.ExternalIPs = addresses(svc.Spec.ExternalIPs, ipv6)
		for j := range svc.Status.LoadBalancer.Ingress {
			ingress := &svc.Status.LoadBalancer.Ingress[j]
			if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
				p.LoadBalancerIPs = append(p.LoadBalancerIPs, addresses([]string{ingress.IP}, ipv6)...)
			}
		}
		for _, text := range svc.Spec.LoadBalancerSourceRanges {
			if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && prefix.Addr().Is6() == ipv6 {
				p.SourceRanges = append(p.SourceRanges, prefix.Masked())
			}
		}
		p.Endpoints, p.HasAny = endpointsOf(slices, sp, here, ipv6, p.LocalInternal || p.LocalExternal)
		ports = append(ports, p)
	}
	return ports
}

// labelProxyName on a service says that another proxy takes care of it.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

func clusterIPs(svc *corev1.Service) []string {
	if len(svc.Spec.ClusterIPs) > 0 {
		return svc.Spec.ClusterIPs
	}
	return []string{svc.Spec.ClusterIP}
}

func addresses(texts []string, ipv6 bool) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() == ipv6 {
			out = append(out, addr)
		}
	}
	return out
}

// endpointsOf returns the endpoints of a service's port that take connections:
// those that are ready, or while none is, those that still serve though they
// are going (KEP-1669). With hints for all of them, those for this node, else
// for this zone (topology aware routing, traffic distribution). any tells whether there are endpoints at all.
func endpointsOf(list []*discoveryv1.EndpointSlice, sp *corev1.ServicePort, here node, ipv6, anyPolicyLocal bool) (out []rules.Endpoint, hasAny bool) {
	type found struct {
		rules.Endpoint
		ready, serving, zoneHint, forZone, nodeHint, forNode bool
	}
	var all []found
	seen := map[netip.AddrPort]bool{}
	for _, slice := range list {
		if (slice.AddressType == discoveryv1.AddressTypeIPv6) != ipv6 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		port := portIn(slice, sp)
		if port == 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			at := netip.AddrPortFrom(addr, port)
			if err != nil || seen[at] {
				continue
			}
			f := found{Endpoint: rules.Endpoint{Address: at, Local: e.NodeName != nil && *e.NodeName == here.name}}
			f.ready = e.Conditions.Ready == nil || *e.Conditions.Ready
			f.serving = e.Conditions.Serving != nil && *e.Conditions.Serving || e.Conditions.Serving == nil && f.ready
			if e.Hints != nil {
				f.zoneHint, f.nodeHint = len(e.Hints.ForZones) > 0, len(e.Hints.ForNodes) > 0
				for _, z := range e.Hints.ForZones {
					f.forZone = f.forZone || z.Name == here.zone
				}
				for _, n := range e.Hints.ForNodes {
					f.forNode = f.forNode || n.Name == here.name
				}
			}
			if f.ready || f.serving {
				seen[at] = true
				all = append(all, f)
			}
		}
	}
	pick := func(want func(found) bool) []found {
		var some []found
		for _, f := range all {
			if want(f) {
				some = append(some, f)
			}
		}
		return some
	}
	use := pick(func(f found) bool { return f.ready })
	if len(use) == 0 {
		use = pick(func(f found) bool { return f.serving })
	}
	hasAny = len(use) > 0
	// near keeps those that are for here, if all say for whom they are and some
	// are for here.
	near := func(hinted, forHere func(found) bool) bool {
		if slices.ContainsFunc(use, func(f found) bool { return !hinted(f) }) || !slices.ContainsFunc(use, forHere) {
			return false
		}
		use = slices.DeleteFunc(use, func(f found) bool { return !forHere(f) })
		return true
	}
	if !anyPolicyLocal && !near(func(f found) bool { return f.nodeHint }, func(f found) bool { return f.forNode }) && here.zone != "" {
		near(func(f found) bool { return f.zoneHint }, func(f found) bool { return f.forZone })
	}
	for _, f := range use {
		out = append(out, f.Endpoint)
	}
	slices.SortFunc(out, func(a, b rules.Endpoint) int {
		if c := a.Address.Addr().Compare(b.Address.Addr()); c != 0 {
			return c
		}
		return cmp.Compare(a.Address.Port(), b.Address.Port())
	})
	return out, hasAny
}

// portIn returns the number of a service's port in a slice, 0 if it is not
// there.
func portIn(slice *discoveryv1.EndpointSlice, sp *corev1.ServicePort) uint16 {
	for _, p := range slice.Ports {
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if name == sp.Name && protocol == sp.Protocol && p.Port != nil {
			return uint16(*p.Port)
		}
	}
	return 0
}
