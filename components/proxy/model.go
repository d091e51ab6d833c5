package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/proxy/rules"
)

// node is what of this node matters to which endpoints are used.
type node struct{ name, zone string }

// portsOf returns the ports of a service in one address family, with the
// endpoints to use; none when the proxy has nothing to do for it.
func portsOf(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, here node, ipv6 bool) []*rules.Port {
	if _, others := svc.Labels[labelProxyName]; others || svc.Spec.Type == corev1.ServiceTypeExternalName {
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
		if containsAll(p.SourceRanges) {
			p.SourceRanges = nil
		}
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && p.LocalExternal {
			p.HealthCheckPort = uint16(svc.Spec.HealthCheckNodePort)
		}
		p.Endpoints, p.LocalEndpoints, p.Serving = endpointsOf(slices, sp, here, ipv6)
		p.HasAny = len(p.Endpoints) > 0
		ports = append(ports, p)
	}
	return ports
}

func containsAll(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() == 0 })
}

// labelProxyName on a service, of any value, says that another proxy takes care of it.
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

// endpointsOf returns the endpoints of a service's port. Those of any node: the
// ready ones; with hints for all of them, those for this node, else for this zone
// (topology aware routing, traffic distribution); while none is ready, those that
// still serve though they are going (KEP-1669). Those of this node alike, whatever
// there is elsewhere and whatever is hinted. And all that serve.
func endpointsOf(list []*discoveryv1.EndpointSlice, sp *corev1.ServicePort, here node, ipv6 bool) (anywhere, local []rules.Endpoint, serving []netip.AddrPort) {
	var all []found
	seen := map[netip.AddrPort]int{} // where in all
	for _, slice := range list {
		// A slice with this label, of any value, is for DNS alone.
		if _, headless := slice.Labels[corev1.IsHeadlessService]; headless {
			continue
		}
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
			if err != nil {
				continue
			}
			f := see(e, here)
			f.address = netip.AddrPortFrom(addr, port)
			// An address may be that of a pod that goes and of the one that has it
			// next, whose it is.
			if i, there := seen[f.address]; !there {
				seen[f.address] = len(all)
				all = append(all, f)
			} else if !f.terminating {
				all[i] = f
			}
		}
	}
	all = pick(all, func(f found) bool { return f.ready || f.serving })
	slices.SortFunc(all, func(a, b found) int {
		if c := a.address.Addr().Compare(b.address.Addr()); c != 0 {
			return c
		}
		return cmp.Compare(a.address.Port(), b.address.Port())
	})
	for _, f := range all {
		if f.serving {
			serving = append(serving, f.address)
		}
	}
	return usable(near(all, here)), usable(pick(all, func(f found) bool { return f.local })), serving
}

// found is an endpoint, and what matters of it to this node.
type found struct {
	address                                          netip.AddrPort
	ready, serving, terminating, local               bool
	zoneHinted, forThisZone, nodeHinted, forThisNode bool
}

func see(e *discoveryv1.Endpoint, here node) found {
	f := found{local: e.NodeName != nil && *e.NodeName == here.name}
	f.ready = e.Conditions.Ready == nil || *e.Conditions.Ready
	f.serving = e.Conditions.Serving == nil || *e.Conditions.Serving
	f.terminating = ptr.Deref(e.Conditions.Terminating, false)
	if e.Hints != nil {
		f.zoneHinted, f.nodeHinted = len(e.Hints.ForZones) > 0, len(e.Hints.ForNodes) > 0
		f.forThisZone = slices.ContainsFunc(e.Hints.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == here.zone })
		f.forThisNode = slices.ContainsFunc(e.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == here.name })
	}
	return f
}

func pick(all []found, want func(found) bool) []found {
	var some []found
	for _, f := range all {
		if want(f) {
			some = append(some, f)
		}
	}
	return some
}

// usable keeps the ready ones, and while there is none, those that go and still
// serve.
func usable(all []found) []rules.Endpoint {
	use := pick(all, func(f found) bool { return f.ready })
	if len(use) == 0 {
		use = pick(all, func(f found) bool { return f.serving && f.terminating })
	}
	var out []rules.Endpoint
	for _, f := range use {
		out = append(out, rules.Endpoint{Address: f.address})
	}
	return out
}

// near keeps of the ready ones those that are for here, if all say for whom they
// are and some are for here. Without any that is ready all are kept.
func near(all []found, here node) []found {
	ready := pick(all, func(f found) bool { return f.ready })
	if len(ready) == 0 {
		return all
	}
	for _, by := range []struct{ hinted, forHere func(found) bool }{
		{func(f found) bool { return f.nodeHinted }, func(f found) bool { return f.forThisNode }},
		{func(f found) bool { return f.zoneHinted }, func(f found) bool { return f.forThisZone && here.zone != "" }},
	} {
		if len(pick(ready, by.hinted)) == len(ready) && slices.ContainsFunc(ready, by.forHere) {
			return pick(ready, by.forHere)
		}
	}
	return ready
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
