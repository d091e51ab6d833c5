package rules

import (
	"net/netip"
	"slices"

	pf "hyperkube/internal/host/packetfilter"
)

// policy is how packets to an address of a Service are handled.
type policy uint32

// anyEndpoint and the other constants are the policies. Zero is not used.
const (
	// anyEndpoint and localEndpoint forward packets to a cluster IP.
	anyEndpoint policy = 1 + iota
	localEndpoint
	// external forwards packets to another address, and externalLocal to endpoints of this node, except for packets from this
	// node and its pods.
	external
	externalLocal
	// externalLocalNone is externalLocal without endpoints on this node: other packets are dropped.
	externalLocalNone
	// reject and drop refuse packets to a cluster IP, and rejectExternal those to another address.
	reject
	drop
	rejectExternal
)

// frontend is an address of a Service port. For a node port, address is the zero Addr.
type frontend struct {
	address  netip.Addr
	protocol string
	port     uint16
}

// appendTo appends f to a key.
func (f frontend) appendTo(key []byte, ipv6 bool) []byte {
	address := f.address
	switch {
	case address.IsValid():
	case ipv6:
		address = netip.IPv6Unspecified()
	default:
		address = netip.IPv4Unspecified()
	}
	return pf.AppendPort(pf.AppendProtocol(pf.AppendAddress(key, address), f.protocol), f.port)
}

// id returns the frontend of the cluster IP, which identifies the port.
func (p *Port) id() frontend { return frontend{p.ClusterIP, p.Protocol, p.Port} }

// kind is the kind of an address of a Service.
type kind string

const (
	clusterIP  kind = "cluster IP"
	externalIP kind = "external IP"
	balancerIP kind = "loadbalancer IP"
	nodePort   kind = "node port"
)

// addresses returns the frontends of p except for that of its cluster IP, with their kinds.
func (p *Port) addresses() map[frontend]kind {
	out := map[frontend]kind{}
	if p.NodePort != 0 {
		out[frontend{netip.Addr{}, p.Protocol, p.NodePort}] = nodePort
	}
	for _, ip := range p.ExternalIPs {
		out[frontend{ip, p.Protocol, p.Port}] = externalIP
	}
	for _, ip := range p.LoadBalancerIPs {
		out[frontend{ip, p.Protocol, p.Port}] = balancerIP
	}
	delete(out, p.id())
	return out
}

// policyOf returns the policy of an address of p.
func (p *Port) policyOf(k kind) policy {
	switch {
	case k == clusterIP && !p.HasAny:
		return reject
	case k == clusterIP && p.LocalInternal && len(p.LocalEndpoints) == 0:
		return drop
	case k == clusterIP && p.LocalInternal:
		return localEndpoint
	case k == clusterIP:
		return anyEndpoint
	case !p.HasAny:
		return rejectExternal
	case p.LocalExternal && len(p.LocalEndpoints) == 0:
		return externalLocalNone
	case p.LocalExternal:
		return externalLocal
	}
	return external
}

// staticElements returns the elements that exist even without Services.
func staticElements() []pf.Element {
	var out []pf.Element
	add := func(set string, p policy, table pf.Table, target string) {
		out = append(out, pf.Element{Set: set, Key: string(pf.AppendNumber(nil, uint32(p))), Verdict: pf.Chain{Table: table, Name: target}})
	}
	add(policies, anyEndpoint, pf.NAT, chainClusterIPs)
	add(policies, localEndpoint, pf.NAT, chainLocalClusterIPs)
	add(policies, external, pf.NAT, chainExternal)
	add(policies, externalLocal, pf.NAT, chainExternalLocal)
	add(policies, externalLocalNone, pf.NAT, chainExternalLocal)
	add(refusals, reject, pf.Filter, chainReject)
	add(refusals, drop, pf.Filter, pf.Drop)
	add(externalRefusals, rejectExternal, pf.Filter, chainReject)
	add(externalRefusals, externalLocalNone, pf.Filter, pf.Drop)
	return out
}

// frontendElement returns the element of frontends for an address of p.
func (p *Port) frontendElement(f frontend, k kind, ipv6 bool) pf.Element {
	return pf.Element{
		Set: frontends, Key: string(f.appendTo(nil, ipv6)),
		Value:   string(p.id().appendTo(pf.AppendNumber(pf.AppendNumber(nil, 0), uint32(p.policyOf(k))), ipv6)),
		Comment: p.comment(string(k)),
	}
}

// ranges returns the source ranges from which packets to a load balancer address of p are accepted, without duplicates. It
// returns nil if all are accepted.
func (p *Port) ranges(cfg Config) []netip.Prefix {
	if !p.HasAny || len(p.SourceRanges) == 0 {
		return nil
	}
	var out []netip.Prefix
	for _, r := range p.SourceRanges {
		out = append(out, r.Masked())
	}
	// Packets from the node to a load balancer address that is also a local address have that address as their source.
	if slices.ContainsFunc(p.SourceRanges, func(r netip.Prefix) bool { return slices.ContainsFunc(cfg.NodeIPs, r.Contains) }) {
		for _, ip := range p.LoadBalancerIPs {
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// firewallElements returns the elements that restrict the sources of packets to a load balancer address of p.
func (p *Port) firewallElements(f frontend, cfg Config) []pf.Element {
	var out []pf.Element
	key := f.appendTo(nil, cfg.IPv6)
	for i, r := range p.ranges(cfg) {
		if i == 0 {
			out = append(out, pf.Element{Set: firewalled, Key: string(key)})
		}
		out = append(out, pf.Element{
			Set: sourceRanges, Key: string(pf.AppendNumber(pf.AppendAddress(slices.Clip(key), r.Addr()), uint32(r.Bits()))),
		})
	}
	return out
}

// reached returns the endpoints that packets to p may reach, all and local ones.
func (p *Port) reached() (all, local []Endpoint) {
	if !p.HasAny {
		return nil, nil
	}
	if p.usesAny() {
		all = p.Endpoints
	}
	if p.usesLocal() {
		local = p.LocalEndpoints
	}
	return all, local
}

// endpointSets returns the sets of endpointElements.
func endpointSets() []string {
	return []string{counts, endpoints, localEndpoints, affine, localAffine, affineValid, localAffineValid}
}

// endpointElements returns the elements of one of endpointSets for the endpoints of p.
func (p *Port) endpointElements(set string, ipv6 bool) []pf.Element {
	all, local := p.reached()
	id := slices.Clip(p.id().appendTo(nil, ipv6))
	if set == counts {
		if !p.HasAny {
			return nil
		}
		value := pf.AppendNumber(pf.AppendNumber(nil, 0), uint32(len(local)))
		value = pf.AppendNumber(pf.AppendNumber(value, uint32(p.Affinity)), uint32(len(all)))
		return []pf.Element{{Set: counts, Key: string(id), Value: string(value)}}
	}
	list := all
	if set == localEndpoints || set == localAffine || set == localAffineValid {
		list = local
	}
	if affinity := set != endpoints && set != localEndpoints; affinity != (p.Affinity > 0) {
		return nil
	}
	out := make([]pf.Element, 0, len(list))
	for i, e := range list {
		var before []byte
		if set == affine || set == localAffine {
			before = pf.AppendNumber(nil, 0)
		}
		endpoint := pf.AppendPort(pf.AppendAddress(before, e.Address.Addr()), e.Address.Port())
		if set == affineValid || set == localAffineValid {
			out = append(out, pf.Element{Set: set, Key: string(append(endpoint, id...))})
			continue
		}
		out = append(out, pf.Element{Set: set, Key: string(pf.AppendNumber(id, uint32(i))), Value: string(endpoint)})
	}
	return out
}

// hairpinElement returns the element of hairpins for the address of an endpoint.
func hairpinElement(ip netip.Addr) pf.Element {
	return pf.Element{Set: hairpins, Key: string(pf.AppendAddress(pf.AppendAddress(nil, ip), ip))}
}

// healthPortElement returns the element of healthPorts for a port.
func healthPortElement(port uint16) pf.Element {
	return pf.Element{Set: healthPorts, Key: string(pf.AppendPort(pf.AppendProtocol(nil, "tcp"), port))}
}

// balancers returns the chains that choose between endpoints of p.
func (p *Port) balancers() []balancer {
	all, local := p.reached()
	var out []balancer
	if len(all) > 0 {
		out = append(out, balancer{false, len(all), p.Affinity})
	}
	if len(local) > 0 {
		out = append(out, balancer{true, len(local), p.Affinity})
	}
	return out
}
