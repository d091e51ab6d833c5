package rules

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"hyperkube/internal/host/packetfilter"
)

// Config contains the settings that all rules of a node share.
type Config struct {
	// IPv6 selects the IP family.
	IPv6 bool
	// Pods matches traffic of this node's pods. All other traffic to cluster IPs is masqueraded so
	// that responses return through this node. If empty, only hairpin and node port traffic is
	// masqueraded.
	Pods Source
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// LocalhostNodePorts makes node ports reachable on 127.0.0.1.
	LocalhostNodePorts bool
	// MasqueradeMark is the packet mark bit that requests masquerading. Zero means 0x4000, as
	// upstream.
	MasqueradeMark uint32
	// NodePortRanges contain the node addresses on which node ports answer. Empty means all
	// addresses.
	NodePortRanges []netip.Prefix
	// NodeIPs are the node's addresses of this IP family. If loadBalancerSourceRanges contain one,
	// the node may connect to the load balancer's address.
	NodeIPs []netip.Addr
	// Liberal is true if conntrack accepts TCP packets outside the window. Invalid packets are then
	// not dropped.
	Liberal bool
}

// defaultMasqueradeMark is upstream's default of the packet mark bit that requests masquerading.
const defaultMasqueradeMark = 1 << 14

// mark returns the packet mark bit that requests masquerading: MasqueradeMark or its default.
func (c Config) mark() uint32 {
	if c.MasqueradeMark == 0 {
		return defaultMasqueradeMark
	}
	return c.MasqueradeMark
}

// Source matches traffic by its origin: a range of addresses or a network interface. The zero
// Source matches nothing.
type Source struct {
	from packetfilter.Addresses
	link packetfilter.Link
}

// FromRange matches traffic from the addresses of a range.
func FromRange(r netip.Prefix) Source { return Source{from: packetfilter.In(r)} }

// FromInterface matches traffic that arrives on an interface. A name with the suffix "+" matches
// all interfaces with that prefix.
func FromInterface(name string) Source { return Source{link: packetfilter.Link{Name: name}} }

// match returns r, restricted to packets from the source, or, if not is true, from all other
// sources.
func (s Source) match(r packetfilter.Rule, not bool) packetfilter.Rule {
	r.Src, r.In = s.from, s.link
	r.Src.Not, r.In.Not = not && s.from.Range.IsValid(), not && s.link.Name != ""
	return r
}

// Build returns the iptables chains of all ports, and the jumps to them, for one IP family. A
// caller that builds repeatedly uses a Builder.
func Build(cfg Config, ports []*Port) packetfilter.Ruleset { return new(Builder).Build(cfg, ports) }

// Builder builds rules repeatedly. It caches the rules of each port, so that a call costs little if
// few ports have changed. The zero Builder is ready to use. It is not safe for concurrent use.
type Builder struct {
	cfg   Config
	built map[*Port]*built
	round int // number of the last call of Build
	// chains is the number of chains that the last call returned.
	chains int
}

// built contains the rules of one port as they were built last. A port that was not passed to the last call of
// Build is forgotten.
type built struct {
	parts []part
	round int // last call of Build with the port
}

// part contains the rules of a port in one chain.
type part struct {
	chain packetfilter.Chain
	rules []packetfilter.Rule
}

// Build is like the function Build. Ports are identified by their pointers, so they must not be
// modified between calls: a changed port is a new *Port. Chains that belong to one port have the
// same memory in the results of successive calls, until the port or cfg is another, so that a
// caller can compare them cheaply.
func (b *Builder) Build(cfg Config, ports []*Port) packetfilter.Ruleset {
	if b.built == nil || !b.cfg.equal(cfg) {
		b.cfg, b.built = cfg, map[*Port]*built{}
	}
	b.round++
	chains := make(packetfilter.Chains, b.chains)
	maps.Copy(chains, staticChains(cfg))
	for _, p := range ports {
		of := b.built[p]
		if of == nil {
			of = &built{parts: buildPort(cfg, p)}
			b.built[p] = of
		}
		of.round = b.round
		for _, part := range of.parts {
			if isShared(part.chain.Name) {
				chains[part.chain] = append(chains[part.chain], part.rules...)
			} else {
				chains[part.chain] = part.rules
			}
		}
	}
	if len(b.built) > len(ports) {
		maps.DeleteFunc(b.built, func(_ *Port, of *built) bool { return of.round != b.round })
	}
	services := packetfilter.Chain{Table: packetfilter.NAT, Name: "KUBE-SERVICES"}
	chains[services] = append(chains[services], nodePortJumps(cfg)...)
	b.chains = len(chains)
	return packetfilter.Ruleset{Chains: chains, Jumps: jumps}
}

// nodePortJumps returns the last rules of the chain KUBE-SERVICES. They match packets to an address of this node that no
// service address matched.
func nodePortJumps(cfg Config) []packetfilter.Rule {
	last := packetfilter.Rule{
		Comment:  "kubernetes service nodeports; NOTE: this must be the last rule in this chain",
		DstLocal: true, Target: "KUBE-NODEPORTS",
	}
	if len(cfg.NodePortRanges) == 0 {
		return []packetfilter.Rule{last}
	}
	var out []packetfilter.Rule
	for _, r := range cfg.NodePortRanges {
		last.Dst = packetfilter.In(r)
		out = append(out, last)
	}
	return out
}

// equal reports whether two configurations yield the same rules.
func (c Config) equal(o Config) bool {
	ranges, ips := slices.Equal(c.NodePortRanges, o.NodePortRanges), slices.Equal(c.NodeIPs, o.NodeIPs)
	c.NodePortRanges, c.NodeIPs, o.NodePortRanges, o.NodeIPs = nil, nil, nil, nil
	return ranges && ips && reflect.DeepEqual(c, o)
}

// isShared reports whether the chain with this name contains rules of several ports. All other
// chains with rules of a port belong to that port.
func isShared(name string) bool {
	switch name {
	case "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL":
		return true
	}
	return false
}

// Canary is the name of a chain without rules in each table. If it is missing, another process has
// removed chains of the proxy, probably all of them.
const Canary = "KUBE-PROXY-CANARY"

// Hint is the name of a chain of the mangle table by which programs in containers detect whether
// the host uses legacy iptables or nftables.
//
// https://github.com/kubernetes/enhancements/tree/HEAD/keps/sig-network/3178-iptables-cleanup
const Hint = "KUBE-IPTABLES-HINT"

// builder builds the rules of one port.
type builder struct {
	cfg   Config
	parts []part
}

// buildPort returns the rules of a port by chain, in the order in which the chains were first used.
func buildPort(cfg Config, p *Port) []part {
	b := &builder{cfg: cfg}
	b.port(p)
	return b.parts
}

// has reports whether rules were added to a chain.
func (b *builder) has(chain packetfilter.Chain) bool {
	return slices.ContainsFunc(b.parts, func(p part) bool { return p.chain == chain })
}

// add appends rules to the chain with this name, which need not exist.
func (b *builder) add(table packetfilter.Table, name string, rules ...packetfilter.Rule) {
	chain := packetfilter.Chain{Table: table, Name: name}
	for i := range b.parts {
		if b.parts[i].chain == chain {
			b.parts[i].rules = append(b.parts[i].rules, rules...)
			return
		}
	}
	b.parts = append(b.parts, part{chain, rules})
}

func (b *builder) nat(name string, rules ...packetfilter.Rule) {
	b.add(packetfilter.NAT, name, rules...)
}

func (b *builder) filter(name string, rules ...packetfilter.Rule) {
	b.add(packetfilter.Filter, name, rules...)
}

const established = packetfilter.Related | packetfilter.Established

// staticChains returns the chains that exist even without services.
func staticChains(cfg Config) packetfilter.Chains {
	mark := cfg.mark()
	nat := map[string][]packetfilter.Rule{
		"KUBE-SERVICES": nil, "KUBE-NODEPORTS": nil, Canary: nil,
		"KUBE-MARK-MASQ": {{Target: packetfilter.MARK, SetMark: mark}},
		"KUBE-POSTROUTING": {
			{Mark: packetfilter.Mark{Bits: mark, Not: true}, Target: packetfilter.Return},
			{Target: packetfilter.MARK, ToggleMark: mark},
			{Comment: "kubernetes service traffic requiring SNAT", Target: packetfilter.Masquerade, RandomPorts: true},
		},
	}
	filter := map[string][]packetfilter.Rule{
		"KUBE-SERVICES": nil, "KUBE-EXTERNAL-SERVICES": nil, "KUBE-NODEPORTS": nil, "KUBE-PROXY-FIREWALL": nil, "KUBE-FIREWALL": nil, Canary: nil,
		"KUBE-FORWARD": {
			{Comment: "kubernetes forwarding rules", Mark: packetfilter.Mark{Bits: mark}, Target: packetfilter.Accept},
			{Comment: "kubernetes forwarding conntrack rule", Conn: packetfilter.ConnState{States: established}, Target: packetfilter.Accept},
		},
	}
	if !cfg.Liberal {
		invalid := packetfilter.Rule{Conn: packetfilter.ConnState{States: packetfilter.Invalid}, Target: packetfilter.Drop}
		filter["KUBE-FORWARD"] = slices.Insert(filter["KUBE-FORWARD"], 0, invalid)
	}
	if cfg.LocalhostNodePorts && !cfg.IPv6 {
		// With route_localnet enabled, hosts on the same link could otherwise reach sockets on
		// loopback addresses.
		filter["KUBE-FIREWALL"] = []packetfilter.Rule{{
			Comment: "block incoming localnet connections", Src: packetfilter.NotIn(loopback4), Dst: packetfilter.In(loopback4),
			Conn: packetfilter.ConnState{States: established | packetfilter.Translated, Not: true}, Target: packetfilter.Drop,
		}}
	}
	chains := packetfilter.Chains{}
	for table, byName := range map[packetfilter.Table]map[string][]packetfilter.Rule{
		packetfilter.NAT: nat, packetfilter.Filter: filter, packetfilter.Mangle: {Canary: nil, Hint: nil},
	} {
		for name, rules := range byName {
			chains[packetfilter.Chain{Table: table, Name: name}] = rules
		}
	}
	return chains
}

// loopback4 and loopback6 are the ranges of loopback addresses.
var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
)

// port builds all rules of a port: those that match its addresses, and the chains that choose an
// endpoint. Traffic to addresses without usable endpoints is refused.
func (b *builder) port(p *Port) {
	hasInternal, internalChain := p.HasAny, p.chain("KUBE-SVC-")
	if p.LocalInternal {
		hasInternal, internalChain = len(p.LocalEndpoints) > 0, p.chain("KUBE-SVL-")
	}
	hasExternal := p.HasAny
	if p.LocalExternal {
		hasExternal = len(p.LocalEndpoints) > 0
	}

	// Traffic to the cluster IP.
	if hasInternal {
		b.nat("KUBE-SERVICES", p.to(p.ClusterIP, "cluster IP", internalChain))
	} else {
		b.filter("KUBE-SERVICES", p.refuse(p.to(p.ClusterIP, "", "")))
	}

	// Traffic from outside the cluster.
	ext := p.chain("KUBE-EXT-")
	addresses := append(append([]netip.Addr(nil), p.ExternalIPs...), p.LoadBalancerIPs...)
	for i, ip := range addresses {
		name := "external IP"
		if i >= len(p.ExternalIPs) {
			name = "loadbalancer IP"
		}
		if p.HasAny {
			b.nat("KUBE-SERVICES", p.to(ip, name, ext))
			if i >= len(p.ExternalIPs) && len(p.SourceRanges) > 0 {
				b.firewall(p, ip)
			}
		}
		if !hasExternal {
			b.filter("KUBE-EXTERNAL-SERVICES", p.refuse(p.to(ip, "", "")))
		}
	}
	if p.NodePort != 0 {
		port := packetfilter.Rule{Comment: p.comment(""), Protocol: p.Protocol, Ports: packetfilter.Ports{First: p.NodePort}, Target: ext}
		if p.HasAny {
			port.Dst = notLocalhost(b.cfg)
			b.nat("KUBE-NODEPORTS", port)
		}
		if !hasExternal {
			port.Dst, port.DstLocal = packetfilter.Addresses{}, true
			b.filter("KUBE-EXTERNAL-SERVICES", p.refuse(port))
		}
	}
	if p.HealthCheckPort != 0 {
		// Accept health checks of load balancers, even if the node's firewall drops other packets.
		b.filter("KUBE-NODEPORTS", packetfilter.Rule{
			Comment: p.comment("health check node port"), Protocol: "tcp", Ports: packetfilter.Ports{First: p.HealthCheckPort}, Target: packetfilter.Accept,
		})
	}

	if !p.HasAny {
		return
	}
	if p.external() {
		b.external(p, ext, hasExternal)
	}
	if p.usesLocal() && len(p.LocalEndpoints) > 0 {
		b.balance(p, p.chain("KUBE-SVL-"), p.LocalEndpoints, p.LocalInternal)
	}
	if p.usesAny() && len(p.Endpoints) > 0 {
		b.balance(p, p.chain("KUBE-SVC-"), p.Endpoints, !p.LocalInternal)
	}
	made := map[string]bool{}
	var reached []Endpoint
	if p.usesAny() {
		reached = append(reached, p.Endpoints...)
	}
	if p.usesLocal() {
		reached = append(reached, p.LocalEndpoints...)
	}
	for _, e := range reached {
		chain := p.endpointChain(e)
		if made[chain] {
			continue
		}
		made[chain] = true
		b.endpoint(p, chain, e)
	}
}

// notLocalhost returns a match for the destinations of node ports: all but loopback addresses, or
// all if node ports must also answer on 127.0.0.1.
func notLocalhost(cfg Config) packetfilter.Addresses {
	switch {
	case cfg.IPv6:
		return packetfilter.NotIn(loopback6)
	case cfg.LocalhostNodePorts:
		return packetfilter.Addresses{}
	}
	return packetfilter.NotIn(loopback4)
}

// external builds the chain with the given name, to which traffic from outside the cluster to the
// port jumps. takes is true if an endpoint may receive such traffic; otherwise only pods and this
// node are forwarded.
func (b *builder) external(p *Port, chain string, takes bool) {
	// Pods and this node may use all endpoints, whatever the policy is.
	all := p.chain("KUBE-SVC-")
	if !p.LocalExternal {
		b.nat(chain,
			markMasquerade(packetfilter.Rule{Comment: p.comment("masquerade traffic for external destinations")}),
			packetfilter.Rule{Target: all})
		return
	}
	if b.cfg.Pods != (Source{}) {
		b.nat(chain, b.cfg.Pods.match(packetfilter.Rule{Comment: p.comment("pod traffic for external destinations"), Target: all}, false))
	}
	b.nat(chain,
		markMasquerade(packetfilter.Rule{Comment: p.comment("masquerade LOCAL traffic for external destinations"), SrcLocal: true}),
		packetfilter.Rule{Comment: p.comment("route LOCAL traffic for external destinations"), SrcLocal: true, Target: all})
	if takes {
		b.nat(chain, packetfilter.Rule{Target: p.chain("KUBE-SVL-")})
	}
}

// firewall builds the rules that drop traffic to the load balancer address ip from outside the
// SourceRanges of the port.
func (b *builder) firewall(p *Port, ip netip.Addr) {
	chain := p.chain("KUBE-FW-")
	if !b.has(packetfilter.Chain{Table: packetfilter.Filter, Name: chain}) {
		fromNode := false
		for _, r := range p.SourceRanges {
			b.filter(chain, packetfilter.Rule{Src: packetfilter.In(r), Target: packetfilter.Return})
			fromNode = fromNode || slices.ContainsFunc(b.cfg.NodeIPs, r.Contains)
		}
		// Packets from the node to a load balancer address that is also a local address have that
		// address as their source.
		for _, balancer := range p.LoadBalancerIPs {
			if fromNode {
				b.filter(chain, packetfilter.Rule{Src: packetfilter.Is(balancer), Target: packetfilter.Return})
			}
		}
		b.filter(chain, packetfilter.Rule{Comment: p.comment("traffic not accepted by " + chain), Target: packetfilter.Drop})
	}
	// The destination was already translated, so match the original destination from conntrack.
	b.filter("KUBE-PROXY-FIREWALL", packetfilter.Rule{
		Comment: p.comment("loadbalancer source ranges"), Protocol: p.Protocol, OrigDst: netip.AddrPortFrom(ip, p.Port), Target: chain,
	})
}

// balance builds the chain with the given name, which jumps to the chain of one of the endpoints:
// the client's last one if session affinity is set, and otherwise a random one. If clusterIP is
// true, traffic to the cluster IP uses the chain, and is masqueraded if it does not come from a pod
// of this node.
func (b *builder) balance(p *Port, chain string, endpoints []Endpoint, clusterIP bool) {
	rules := make([]packetfilter.Rule, 0, len(endpoints)+1)
	if clusterIP {
		masquerade := markMasquerade(p.to(p.ClusterIP, "cluster IP", ""))
		if b.cfg.MasqueradeAll {
			rules = append(rules, masquerade)
		} else if b.cfg.Pods != (Source{}) {
			rules = append(rules, b.cfg.Pods.match(masquerade, true))
		}
	}
	if p.Affinity > 0 {
		for _, e := range endpoints {
			to := p.endpointChain(e)
			rules = append(rules, packetfilter.Rule{
				Comment: p.comment("-> " + e.Address.String()), Recent: packetfilter.Recent{List: to, Within: p.Affinity}, Target: to,
			})
		}
	}
	for i, e := range endpoints {
		rules = append(rules, packetfilter.Rule{Comment: p.comment("-> " + e.Address.String()), OneIn: len(endpoints) - i, Target: p.endpointChain(e)})
	}
	b.nat(chain, rules...)
}

// endpoint builds the chain with the given name, which translates the destination of packets to the
// endpoint e.
func (b *builder) endpoint(p *Port, chain string, e Endpoint) {
	translate := packetfilter.Rule{Comment: p.comment(""), Protocol: p.Protocol, Target: packetfilter.DNAT, To: e.Address}
	if p.Affinity > 0 {
		translate.Recent = packetfilter.Recent{List: chain, Within: p.Affinity, Record: true}
	}
	// A pod that connects to itself through its service must be masqueraded. Otherwise it would
	// respond to its own address directly, bypassing the translation.
	b.nat(chain, markMasquerade(packetfilter.Rule{Comment: p.comment(""), Src: packetfilter.Is(e.Address.Addr())}), translate)
}

// markMasquerade returns r with a target that marks packets for masquerading, after which the kernel continues with the
// next rule.
func markMasquerade(r packetfilter.Rule) packetfilter.Rule {
	r.Target = "KUBE-MARK-MASQ"
	return r
}

// to returns a rule that matches packets to the port at the address ip and jumps to target. what
// describes the address in the rule's comment.
func (p *Port) to(ip netip.Addr, what, target string) packetfilter.Rule {
	return packetfilter.Rule{
		Comment: p.comment(what), Dst: packetfilter.Is(ip), Protocol: p.Protocol, Ports: packetfilter.Ports{First: p.Port}, Target: target,
	}
}

// comment returns the comment of a rule: the ID of the port, followed by what, shortened to the
// limit of the kernel.
func (p *Port) comment(what string) string {
	text := p.ID()
	if what != "" {
		text += " " + what
	}
	// The kernel limits the length of comments.
	return text[:min(len(text), 255)]
}

// refuse returns r with the target for traffic that has no usable endpoint. Without any endpoint it
// is rejected, so that clients fail fast. If other nodes have endpoints it is dropped, because a
// retry may reach another node.
func (p *Port) refuse(r packetfilter.Rule) packetfilter.Rule {
	r.Comment, r.Target = p.comment("has no endpoints"), packetfilter.Reject
	if p.HasAny {
		r.Comment, r.Target = p.comment("has no local endpoints"), packetfilter.Drop
	}
	return r
}
