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

// node contains the fields of this node that affect the choice of endpoints.
type node struct{ name, zone string }

// portsOf returns the ports of a Service in one IP family, with the endpoints that this node uses,
// from the slices of the Service. It returns nil for Services without rules: without a cluster IP
// of the family, of type ExternalName, or with a label that assigns them to another proxy.
func portsOf(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, here node, ipv6 bool) []*rules.Port {
	if _, otherProxy := svc.Labels[labelProxyName]; otherProxy || svc.Spec.Type == corev1.ServiceTypeExternalName {
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

// containsAll reports whether one of the ranges contains all addresses, such as 0.0.0.0/0.
func containsAll(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() == 0 })
}

// labelProxyName on a service, with any value, means that another proxy handles it.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// clusterIPs returns the cluster IPs of a Service. Objects of old clients have only the field for
// one of them.
func clusterIPs(svc *corev1.Service) []string {
	if len(svc.Spec.ClusterIPs) > 0 {
		return svc.Spec.ClusterIPs
	}
	return []string{svc.Spec.ClusterIP}
}

// addresses returns those texts that are addresses of the IP family.
func addresses(texts []string, ipv6 bool) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() == ipv6 {
			out = append(out, addr)
		}
	}
	return out
}

// endpointsOf selects the endpoints of a Service port in one IP family from the slices of the
// Service.
//
// anywhere are the ready endpoints of all nodes. If all of them have hints, only those for this
// node, or else for this zone, are used (topology aware routing, traffic distribution). If none is
// ready, endpoints that are serving and terminating are used (KEP-1669).
//
// local are the endpoints of this node, selected independently of other nodes and of hints. serving
// are the addresses of all endpoints that serve, including terminating ones. All are sorted by
// address.
func endpointsOf(list []*discoveryv1.EndpointSlice, sp *corev1.ServicePort, here node, ipv6 bool) (anywhere, local []rules.Endpoint, serving []netip.AddrPort) {
	var all []candidate
	seen := map[netip.AddrPort]int{} // index in all
	for _, slice := range list {
		// A slice with this label, of any value, is for DNS only.
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
			f := newCandidate(e, here)
			f.address = netip.AddrPortFrom(addr, port)
			// An address may belong to a terminating pod and to a new pod that reuses it. The new
			// pod takes precedence.
			if i, exists := seen[f.address]; !exists {
				seen[f.address] = len(all)
				all = append(all, f)
			} else if !f.terminating {
				all[i] = f
			}
		}
	}
	all = filter(all, func(f candidate) bool { return f.ready || f.serving })
	slices.SortFunc(all, func(a, b candidate) int {
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
	return readyOrServing(withTopology(all, here)), readyOrServing(filter(all, func(f candidate) bool { return f.local })), serving
}

// candidate is an endpoint that endpointsOf may select, with its conditions, and the hints as they
// apply to this node.
type candidate struct {
	address                                          netip.AddrPort
	ready, serving, terminating, local               bool
	zoneHinted, forThisZone, nodeHinted, forThisNode bool
}

func newCandidate(e *discoveryv1.Endpoint, here node) candidate {
	f := candidate{local: e.NodeName != nil && *e.NodeName == here.name}
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

func filter(all []candidate, want func(candidate) bool) []candidate {
	var some []candidate
	for _, f := range all {
		if want(f) {
			some = append(some, f)
		}
	}
	return some
}

// readyOrServing returns the ready endpoints, or if there are none, those that are serving and terminating.
func readyOrServing(all []candidate) []rules.Endpoint {
	use := filter(all, func(f candidate) bool { return f.ready })
	if len(use) == 0 {
		use = filter(all, func(f candidate) bool { return f.serving && f.terminating })
	}
	var out []rules.Endpoint
	for _, f := range use {
		out = append(out, rules.Endpoint{Address: f.address})
	}
	return out
}

// withTopology selects endpoints by their topology hints: the ready ones with a node hint for this
// node, if all ready endpoints have node hints and one of them is for this node. Otherwise the same
// with zone hints and the zone of this node. If neither applies, all ready endpoints. If no
// endpoint is ready, it returns all endpoints, from which the caller selects terminating ones.
func withTopology(all []candidate, here node) []candidate {
	ready := filter(all, func(f candidate) bool { return f.ready })
	if len(ready) == 0 {
		return all
	}
	for _, by := range []struct{ hinted, forHere func(candidate) bool }{
		{func(f candidate) bool { return f.nodeHinted }, func(f candidate) bool { return f.forThisNode }},
		{func(f candidate) bool { return f.zoneHinted }, func(f candidate) bool { return f.forThisZone && here.zone != "" }},
	} {
		if len(filter(ready, by.hinted)) == len(ready) && slices.ContainsFunc(ready, by.forHere) {
			return filter(ready, by.forHere)
		}
	}
	return ready
}

// portIn returns the port number that the endpoints of a slice have for a Service port, matched by
// name and protocol. It returns 0 if the slice does not have the port.
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
