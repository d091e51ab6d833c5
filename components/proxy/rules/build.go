package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Config is what all rules of a node share.
type Config struct {
	// IPv6: build for that family.
	IPv6 bool
	// Pods tells traffic of this node's pods: what is not to a cluster IP is
	// masqueraded so that answers come back. Empty: only hairpins and node
	// ports are.
	Pods Source
	// MasqueradeAll masquerades everything to cluster IPs.
	MasqueradeAll bool
	// LocalhostNodePorts: node ports answer on 127.0.0.1 too.
	LocalhostNodePorts bool
	// MasqueradeMark is the bit of packets' marks that asks for masquerading;
	// zero is 0x4000, as upstream.
	MasqueradeMark uint32
	// NodePortRanges are those of the node's addresses on which node ports
	// answer; none: all.
	NodePortRanges []netip.Prefix
	// NodeIPs are the node's addresses of this family: a load balancer's source
	// ranges that contain one let the node reach itself by the balancer's address.
	NodeIPs []netip.Addr
	// Liberal: the kernel follows TCP connections whose packets are out of
	// their window, so that invalid packets are not dropped.
	Liberal bool
}

// defaultMasqueradeMark is upstream's.
const defaultMasqueradeMark = 1 << 14

// mark asks for masquerading.
func (c Config) mark() string {
	mark := c.MasqueradeMark
	if mark == 0 {
		mark = defaultMasqueradeMark
	}
	return fmt.Sprintf("%#x", mark)
}

// Source tells traffic by where it comes from. The zero Source tells nothing.
type Source struct{ match string }

// FromRange is traffic from addresses of a range.
func FromRange(r netip.Prefix) Source { return Source{"-s " + r.String()} }

// FromInterface is traffic that comes in by an interface; a name that ends in "+"
// is that of all that begin so.
func FromInterface(name string) Source { return Source{"-i " + name} }

func (s Source) not() string { return "! " + s.match }

// Table is the chains of one iptables table, with their rules in iptables-save
// form without "-A CHAIN".
type Table map[string][]string

// Set is all chains of the proxy in one address family.
type Set struct {
	NAT, Filter Table
}

// Build makes the chains for ports.
func Build(cfg Config, ports []*Port) Set {
	b := &builder{cfg: cfg, nat: Table{}, filter: Table{}}
	b.fixed()
	for _, p := range ports {
		b.port(p)
	}
	// Node ports come last: whatever is for an address of this node and was
	// for no service by its address.
	const last = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`
	for _, r := range cfg.NodePortRanges {
		b.add(b.nat, "KUBE-SERVICES", last, "-d", r.String(), "-m addrtype --dst-type LOCAL", "-j KUBE-NODEPORTS")
	}
	if len(cfg.NodePortRanges) == 0 {
		b.add(b.nat, "KUBE-SERVICES", last, "-m addrtype --dst-type LOCAL", "-j KUBE-NODEPORTS")
	}
	return Set{NAT: b.nat, Filter: b.filter}
}

// Canary is a chain without rules in each table: when it is gone, somebody has
// removed what is not theirs, and the rest is likely to be gone too.
const Canary = "KUBE-PROXY-CANARY"

// Hint is a chain of the table mangle by which programs in containers tell whether
// this machine's rules are legacy or nftables'.
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-network/3178-iptables-cleanup
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

// fixed makes the chains that are there with no services, too.
func (b *builder) fixed() {
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
		// With route_localnet on, neighbours could reach what listens on
		// loopback only.
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

	// Who reaches the service by its cluster IP.
	if hasInternal {
		b.add(b.nat, "KUBE-SERVICES", comment(p, "cluster IP"), match(p.ClusterIP), "-j", internalChain)
	} else {
		b.add(b.filter, "KUBE-SERVICES", comment(p, refusal(p)), match(p.ClusterIP), verdict(p))
	}

	// Who reaches it from outside.
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
			b.add(b.filter, "KUBE-EXTERNAL-SERVICES", comment(p, refusal(p)), match(ip), verdict(p))
		}
	}
	if p.NodePort != 0 {
		port := fmt.Sprintf("-p %s -m %s --dport %d", p.Protocol, p.Protocol, p.NodePort)
		if p.HasAny {
			b.add(b.nat, "KUBE-NODEPORTS", comment(p, ""), b.notLocalhost(), port, "-j", ext)
		}
		if !hasExternal {
			b.add(b.filter, "KUBE-EXTERNAL-SERVICES", comment(p, refusal(p)), "-m addrtype --dst-type LOCAL", port, verdict(p))
		}
	}
	if p.HealthCheckPort != 0 {
		// A node whose own firewall lets in nothing lets in load balancers.
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

// notLocalhost keeps node ports from answering on loopback where that is not
// wanted.
func (b *builder) notLocalhost() string {
	if b.cfg.LocalhostNodePorts && !b.cfg.IPv6 {
		return ""
	}
	if b.cfg.IPv6 {
		return "! -d ::1/128"
	}
	return "! -d 127.0.0.0/8"
}

// external makes the chain of traffic from outside the cluster; takes tells
// whether an endpoint takes such traffic.
func (b *builder) external(p *Port, chain string, takes bool) {
	// Pods and this node go to all endpoints whatever the policy says.
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

// firewall keeps a load balancer's address to the ranges it is for.
func (b *builder) firewall(p *Port, ip netip.Addr) {
	chain := p.chain("KUBE-FW-")
	if _, made := b.filter[chain]; !made {
		fromNode := false
		for _, r := range p.SourceRanges {
			b.add(b.filter, chain, "-s", r.String(), "-j RETURN")
			fromNode = fromNode || slices.ContainsFunc(b.cfg.NodeIPs, r.Contains)
		}
		// What the node sends to an address that is one of its own comes from
		// that address.
		for _, balancer := range p.LoadBalancerIPs {
			if fromNode {
				b.add(b.filter, chain, "-s", netip.PrefixFrom(balancer, balancer.BitLen()).String(), "-j RETURN")
			}
		}
		b.add(b.filter, chain, comment(p, "traffic not accepted by "+chain), "-j DROP")
	}
	// The destination was translated by now; conntrack remembers it.
	b.add(b.filter, "KUBE-PROXY-FIREWALL", comment(p, "loadbalancer source ranges"),
		fmt.Sprintf("-p %s -m conntrack --ctorigdst %s --ctorigdstport %d", p.Protocol, ip, p.Port), "-j", chain)
}

// balance makes the chain that chooses an endpoint.
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

// endpoint makes the chain that sends to one endpoint.
func (b *builder) endpoint(p *Port, chain string, e Endpoint) {
	ip := e.Address.Addr()
	// A pod that reaches itself by its service would see itself as the
	// client, and answer itself past the translation.
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
	// The kernel keeps no more of a comment.
	if len(text) > 255 {
		text = text[:255]
	}
	return `-m comment --comment "` + text + `"`
}

// verdict on traffic that no endpoint takes: with endpoints elsewhere, another
// node may take it on the next try.
func verdict(p *Port) string {
	if p.HasAny {
		return "-j DROP"
	}
	return "-j REJECT"
}

func refusal(p *Port) string {
	if p.HasAny {
		return "has no local endpoints"
	}
	return "has no endpoints"
}
