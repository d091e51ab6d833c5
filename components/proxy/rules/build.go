package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// defaultMasqueradeMark is upstream's default.
const defaultMasqueradeMark = 1 << 14

// mark returns the packet mark that requests masquerading.
func (c Config) mark() string {
	mark := c.MasqueradeMark
	if mark == 0 {
		mark = defaultMasqueradeMark
	}
	return fmt.Sprintf("%#x", mark)
}

// Source matches traffic by its origin. The zero Source matches nothing.
type Source struct{ match string }

// FromRange matches traffic from the addresses of a range.
func FromRange(r netip.Prefix) Source { return Source{"-s " + r.String()} }

// FromInterface matches traffic that arrives on an interface. A name with the suffix "+" matches
// all interfaces with that prefix.
func FromInterface(name string) Source { return Source{"-i " + name} }

func (s Source) not() string { return "! " + s.match }

// Table contains the chains of one iptables table. Rules have the format of iptables-save without
// "-A CHAIN".
type Table map[string][]string

// Set contains all chains of the proxy in one IP family.
type Set struct {
	NAT, Filter Table
}

// Build returns the chains for ports.
func Build(cfg Config, ports []*Port) Set {
	b := &builder{cfg: cfg, nat: Table{}, filter: Table{}}
	b.static()
	for _, p := range ports {
		b.port(p)
	}
	// Node ports are last. They match packets to an address of this node that no service address
	// matched.
	const last = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`
	for _, r := range cfg.NodePortRanges {
		b.add(b.nat, "KUBE-SERVICES", last, "-d", r.String(), "-m addrtype --dst-type LOCAL", "-j KUBE-NODEPORTS")
	}
	if len(cfg.NodePortRanges) == 0 {
		b.add(b.nat, "KUBE-SERVICES", last, "-m addrtype --dst-type LOCAL", "-j KUBE-NODEPORTS")
	}
	return Set{NAT: b.nat, Filter: b.filter}
}

// Canary is a chain without rules in each table. If it is missing, another process has removed
// chains of the proxy, probably all of them.
const Canary = "KUBE-PROXY-CANARY"

// Hint is a chain of the mangle table by which programs in containers detect whether the host uses
// legacy iptables or nftables.
// https://github.com/kubernetes/enhancements/tree/HEAD/keps/sig-network/3178-iptables-cleanup
const Hint = "KUBE-IPTABLES-HINT"

type builder struct {
	cfg         Config
	nat, filter Table
}

func (b *builder) add(t Table, chain string, parts ...string) {
	var rule []string
	for _, part := range parts {
		if part != "" {
			rule = append(rule, part)
		}
	}
	t[chain] = append(t[chain], strings.Join(rule, " "))
}

// static builds the chains that exist even without services.
func (b *builder) static() {
	markMasq := b.cfg.mark()
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS"} {
		b.nat[chain] = nil
	}
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL"} {
		b.filter[chain] = nil
	}
	b.add(b.nat, "KUBE-MARK-MASQ", "-j MARK --or-mark", markMasq)
	b.add(b.nat, "KUBE-POSTROUTING", "-m mark ! --mark", markMasq+"/"+markMasq, "-j RETURN")
	b.add(b.nat, "KUBE-POSTROUTING", "-j MARK --xor-mark", markMasq)
	b.add(b.nat, "KUBE-POSTROUTING", `-m comment --comment "kubernetes service traffic requiring SNAT"`, "-j MASQUERADE --random-fully")
	b.nat[Canary], b.filter[Canary] = nil, nil
	if !b.cfg.Liberal {
		b.add(b.filter, "KUBE-FORWARD", "-m conntrack --ctstate INVALID", "-j DROP")
	}
	b.add(b.filter, "KUBE-FORWARD", `-m comment --comment "kubernetes forwarding rules"`, "-m mark --mark", markMasq+"/"+markMasq, "-j ACCEPT")
	b.add(b.filter, "KUBE-FORWARD", `-m comment --comment "kubernetes forwarding conntrack rule"`, "-m conntrack --ctstate RELATED,ESTABLISHED", "-j ACCEPT")
	if b.cfg.LocalhostNodePorts && !b.cfg.IPv6 {
		// With route_localnet enabled, hosts on the same link could otherwise reach sockets on
		// loopback addresses.
		b.add(b.filter, "KUBE-FIREWALL", `-m comment --comment "block incoming localnet connections"`,
			"! -s 127.0.0.0/8 -d 127.0.0.0/8", "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", "-j DROP")
	}
}

func (b *builder) port(p *Port) {
	hasInternal, internalChain := p.HasAny, p.chain("KUBE-SVC-")
	if p.LocalInternal {
		hasInternal, internalChain = len(p.LocalEndpoints) > 0, p.chain("KUBE-SVL-")
	}
	hasExternal := p.HasAny
	if p.LocalExternal {
		hasExternal = len(p.LocalEndpoints) > 0
	}
	match := func(ip netip.Addr) string {
		return fmt.Sprintf("-d %s -p %s -m %s --dport %d", netip.PrefixFrom(ip, ip.BitLen()), p.Protocol, p.Protocol, p.Port)
	}

	// Traffic to the cluster IP.
	if hasInternal {
		b.add(b.nat, "KUBE-SERVICES", comment(p, "cluster IP"), match(p.ClusterIP), "-j", internalChain)
	} else {
		b.add(b.filter, "KUBE-SERVICES", comment(p, refusalComment(p)), match(p.ClusterIP), verdict(p))
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
			b.add(b.nat, "KUBE-SERVICES", comment(p, name), match(ip), "-j", ext)
			if i >= len(p.ExternalIPs) && len(p.SourceRanges) > 0 {
				b.firewall(p, ip)
			}
		}
		if !hasExternal {
			b.add(b.filter, "KUBE-EXTERNAL-SERVICES", comment(p, refusalComment(p)), match(ip), verdict(p))
		}
	}
	if p.NodePort != 0 {
		port := fmt.Sprintf("-p %s -m %s --dport %d", p.Protocol, p.Protocol, p.NodePort)
		if p.HasAny {
			b.add(b.nat, "KUBE-NODEPORTS", comment(p, ""), b.notLocalhost(), port, "-j", ext)
		}
		if !hasExternal {
			b.add(b.filter, "KUBE-EXTERNAL-SERVICES", comment(p, refusalComment(p)), "-m addrtype --dst-type LOCAL", port, verdict(p))
		}
	}
	if p.HealthCheckPort != 0 {
		// Accept health checks of load balancers, even if the node's firewall drops other packets.
		accept := strings.Join([]string{
			`-m comment --comment "` + p.ID() + ` health check node port"`, fmt.Sprintf("-p tcp -m tcp --dport %d", p.HealthCheckPort), "-j ACCEPT",
		}, " ")
		b.filter["KUBE-NODEPORTS"] = append(b.filter["KUBE-NODEPORTS"], accept)
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

// notLocalhost returns a match that excludes loopback destinations if node ports must not answer
// there.
func (b *builder) notLocalhost() string {
	if b.cfg.LocalhostNodePorts && !b.cfg.IPv6 {
		return ""
	}
	if b.cfg.IPv6 {
		return "! -d ::1/128"
	}
	return "! -d 127.0.0.0/8"
}

// external builds the chain for traffic from outside the cluster. takes reports whether any
// endpoint accepts such traffic.
func (b *builder) external(p *Port, chain string, takes bool) {
	// Pods and this node may use all endpoints, whatever the policy is.
	all := p.chain("KUBE-SVC-")
	if !p.LocalExternal {
		b.add(b.nat, chain, comment(p, "masquerade traffic for external destinations"), "-j KUBE-MARK-MASQ")
		b.add(b.nat, chain, "-j", all)
		return
	}
	if b.cfg.Pods != (Source{}) {
		b.add(b.nat, chain, comment(p, "pod traffic for external destinations"), b.cfg.Pods.match, "-j", all)
	}
	b.add(b.nat, chain, comment(p, "masquerade LOCAL traffic for external destinations"), "-m addrtype --src-type LOCAL", "-j KUBE-MARK-MASQ")
	b.add(b.nat, chain, comment(p, "route LOCAL traffic for external destinations"), "-m addrtype --src-type LOCAL", "-j", all)
	if takes {
		b.add(b.nat, chain, "-j", p.chain("KUBE-SVL-"))
	}
}

// firewall builds the chain that restricts a load balancer's address to its source ranges.
func (b *builder) firewall(p *Port, ip netip.Addr) {
	chain := p.chain("KUBE-FW-")
	if _, made := b.filter[chain]; !made {
		fromNode := false
		for _, r := range p.SourceRanges {
			b.add(b.filter, chain, "-s", r.String(), "-j RETURN")
			fromNode = fromNode || slices.ContainsFunc(b.cfg.NodeIPs, r.Contains)
		}
		// Packets from the node to a load balancer address that is also a local address have that
		// address as their source.
		for _, balancer := range p.LoadBalancerIPs {
			if fromNode {
				b.add(b.filter, chain, "-s", netip.PrefixFrom(balancer, balancer.BitLen()).String(), "-j RETURN")
			}
		}
		b.add(b.filter, chain, comment(p, "traffic not accepted by "+chain), "-j DROP")
	}
	// The destination was already translated, so match the original destination from conntrack.
	b.add(b.filter, "KUBE-PROXY-FIREWALL", comment(p, "loadbalancer source ranges"),
		fmt.Sprintf("-p %s -m conntrack --ctorigdst %s --ctorigdstport %d", p.Protocol, ip, p.Port), "-j", chain)
}

// balance builds the chain that chooses an endpoint.
func (b *builder) balance(p *Port, chain string, endpoints []Endpoint, clusterIP bool) {
	if clusterIP {
		match := fmt.Sprintf("-d %s -p %s -m %s --dport %d", netip.PrefixFrom(p.ClusterIP, p.ClusterIP.BitLen()), p.Protocol, p.Protocol, p.Port)
		if b.cfg.MasqueradeAll {
			b.add(b.nat, chain, comment(p, "cluster IP"), match, "-j KUBE-MARK-MASQ")
		} else if b.cfg.Pods != (Source{}) {
			b.add(b.nat, chain, comment(p, "cluster IP"), b.cfg.Pods.not(), match, "-j KUBE-MARK-MASQ")
		}
	}
	if p.Affinity > 0 {
		for _, e := range endpoints {
			b.add(b.nat, chain, comment(p, "-> "+e.Address.String()),
				fmt.Sprintf("-m recent --name %s --rcheck --seconds %d --reap", p.endpointChain(e), p.Affinity), "-j", p.endpointChain(e))
		}
	}
	for i, e := range endpoints {
		chance := ""
		if left := len(endpoints) - i; left > 1 {
			chance = "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(left), 'f', 10, 64)
		}
		b.add(b.nat, chain, comment(p, "-> "+e.Address.String()), chance, "-j", p.endpointChain(e))
	}
}

// endpoint builds the chain that translates to one endpoint.
func (b *builder) endpoint(p *Port, chain string, e Endpoint) {
	ip := e.Address.Addr()
	// A pod that connects to itself through its service must be masqueraded. Otherwise it would
	// respond to its own address directly, bypassing the translation.
	b.add(b.nat, chain, comment(p, ""), "-s", netip.PrefixFrom(ip, ip.BitLen()).String(), "-j KUBE-MARK-MASQ")
	affinity := ""
	if p.Affinity > 0 {
		affinity = "-m recent --name " + chain + " --set"
	}
	b.add(b.nat, chain, comment(p, ""), affinity, fmt.Sprintf("-p %s -m %s", p.Protocol, p.Protocol), "-j DNAT --to-destination", e.Address.String())
}

func comment(p *Port, what string) string {
	text := p.ID()
	if what != "" {
		text += " " + what
	}
	// The kernel limits the length of comments.
	if len(text) > 255 {
		text = text[:255]
	}
	return `-m comment --comment "` + text + `"`
}

// verdict returns the target for traffic without a usable endpoint. If other nodes have endpoints
// it is dropped, because a retry may reach another node.
func verdict(p *Port) string {
	if p.HasAny {
		return "-j DROP"
	}
	return "-j REJECT"
}

func refusalComment(p *Port) string {
	if p.HasAny {
		return "has no local endpoints"
	}
	return "has no endpoints"
}
