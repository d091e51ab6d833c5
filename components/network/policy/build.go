package policy

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"hyperkube/internal/host/packetfilter"
)

const (
	// chainPolicy is created by package podnet, which also jumps to it.
	chainPolicy = "HK-POLICY"
	// chainPrefix is the prefix of all other chains of this package.
	chainPrefix = "HK-NP-"
	chainOut    = chainPrefix + "OUT"
	chainIn     = chainPrefix + "IN"
)

// chain returns the chain name in the table of this package.
func chain(name string) packetfilter.Chain {
	return packetfilter.Chain{Table: packetfilter.Mangle, Name: name}
}

// chainOf returns the name of the chain for what parts identify, such as a pod or policy: a hash,
// because the length of names is limited.
func chainOf(parts ...any) string {
	sum := sha256.Sum256([]byte(fmt.Sprintln(parts...)))
	return chainPrefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// builder builds the chains of one IP family from a State.
type builder struct {
	*State
	is6    bool
	chains packetfilter.Chains
}

// build returns the rules that enforce the policies for the local pods in one IP family. bridge is
// the pods' bridge. The result always contains HK-POLICY, which is empty if there is nothing to
// enforce.
func build(s *State, bridge string, is6 bool) packetfilter.Chains {
	b := &builder{State: s, is6: is6, chains: packetfilter.Chains{chain(chainPolicy): nil}}
	var egress, ingress []packetfilter.Rule
	for _, pod := range s.Pods {
		ip := pod.ip(is6)
		if !pod.Local || !ip.IsValid() {
			continue
		}
		if chain := b.pod(pod, ip, false); chain != "" {
			egress = append(egress, packetfilter.Rule{Src: packetfilter.Is(ip), Target: chain})
		}
		if chain := b.pod(pod, ip, true); chain != "" {
			ingress = append(ingress, packetfilter.Rule{Dst: packetfilter.Is(ip), Target: chain})
		}
	}
	if len(egress)+len(ingress) == 0 {
		return b.chains
	}
	link := packetfilter.Link{Name: bridge}
	b.set(chainPolicy, packetfilter.Rule{In: link, Target: chainOut}, packetfilter.Rule{Out: link, Target: chainOut})
	established := packetfilter.ConnState{States: packetfilter.Related | packetfilter.Established}
	b.set(chainOut, slices.Concat([]packetfilter.Rule{{Conn: established, Target: packetfilter.Accept}}, egress, []packetfilter.Rule{{Target: chainIn}})...)
	b.set(chainIn, append(ingress, packetfilter.Rule{Target: packetfilter.Accept})...)
	return b.chains
}

// set sets the rules of the chain name.
func (b *builder) set(name string, rules ...packetfilter.Rule) { b.chains[chain(name)] = rules }

// pod builds the chain of a pod, whose address is ip, for one direction, and the chains of the
// policies that select the pod. It returns the name of the pod's chain, or "" if no policy applies to
// the pod in this direction.
func (b *builder) pod(pod *Pod, ip netip.Addr, ingress bool) string {
	var rules []packetfilter.Rule
	for _, policy := range b.Policies {
		in, out := directions(&policy.Spec)
		if ingress && !in || !ingress && !out || policy.Namespace != pod.Namespace || !selector(&policy.Spec.PodSelector).Matches(pod.Labels) {
			continue
		}
		rules = append(rules, packetfilter.Rule{Target: b.policy(policy, ingress)})
	}
	if len(rules) > 0 {
		rules = append(rules, packetfilter.Rule{Target: packetfilter.Drop})
	} else if baseline := b.tier(policyv1alpha2.BaselineTier, pod, ingress); baseline != "" {
		rules = append(rules, packetfilter.Rule{Target: baseline})
	}
	if admin := b.tier(policyv1alpha2.AdminTier, pod, ingress); admin != "" {
		rules = slices.Insert(rules, 0, packetfilter.Rule{Target: admin})
	}
	if len(rules) == 0 {
		return ""
	}
	// A pod can always reach itself, for example through a Service.
	self := packetfilter.Rule{Src: packetfilter.Is(ip), Target: packetfilter.Accept}
	if !ingress {
		self = packetfilter.Rule{Dst: packetfilter.Is(ip), Target: packetfilter.Accept}
	}
	name := chainOf("pod", ingress, pod.Namespace, pod.Name, ip)
	b.set(name, slices.Insert(rules, 0, self)...)
	return name
}

// allowTarget returns the target of packets that a policy allows in one direction: allowed ingress
// packets are accepted, and allowed egress packets continue with the ingress chain.
func allowTarget(ingress bool) string {
	if ingress {
		return packetfilter.Accept
	}
	return chainIn
}

// policy builds the chain of a policy for one direction, unless it exists, and returns its name.
func (b *builder) policy(p *networkingv1.NetworkPolicy, ingress bool) string {
	name := chainOf("policy", ingress, p.Namespace, p.Name)
	if _, exists := b.chains[chain(name)]; exists {
		return name
	}
	var rules []packetfilter.Rule
	if ingress {
		for i := range p.Spec.Ingress {
			rules = append(rules, b.clause(p, i, p.Spec.Ingress[i].From, p.Spec.Ingress[i].Ports, true)...)
		}
	} else {
		for i := range p.Spec.Egress {
			rules = append(rules, b.clause(p, i, p.Spec.Egress[i].To, p.Spec.Egress[i].Ports, false)...)
		}
	}
	b.set(name, rules...)
	return name
}

// clause builds the rules of the i-th ingress or egress rule of the policy p: one rule for each
// port, which jumps to a separate chain of the peers. It returns none if the rule allows nothing.
func (b *builder) clause(p *networkingv1.NetworkPolicy, i int, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, ingress bool) []packetfilter.Rule {
	target := allowTarget(ingress)
	if len(peers) > 0 {
		target = chainOf("peers", ingress, p.Namespace, p.Name, i)
		rules := b.peers(p, i, peers, ingress)
		if len(rules) == 0 {
			return nil
		}
		b.set(target, rules...)
	}
	if len(ports) == 0 {
		return []packetfilter.Rule{{Target: target}}
	}
	var rules []packetfilter.Rule
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		switch {
		case port.Port == nil:
			rules = append(rules, packetfilter.Rule{Protocol: protocolName(protocol), Target: target})
		case port.Port.Type == intstr.Int:
			r := packetfilter.Rule{Protocol: protocolName(protocol), Ports: packetfilter.Ports{First: uint16(port.Port.IntVal)}, Target: target}
			if port.EndPort != nil {
				r.Ports.Last = uint16(*port.EndPort)
			}
			rules = append(rules, r)
		default:
			rules = append(rules, b.named(p, peers, port.Port.StrVal, protocol, ingress, target)...)
		}
	}
	return rules
}

// named builds the rules for a port that a policy refers to by name. Each destination pod defines its number, so there is one
// rule for each of them that has a port of this name. target is where packets to the port continue. It is ignored for egress
// rules with peers, because each rule then contains the address of its peer.
func (b *builder) named(p *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, name string, protocol corev1.Protocol, ingress bool, target string) []packetfilter.Rule {
	var to []*Pod
	switch {
	case ingress:
		selected := selector(&p.Spec.PodSelector)
		for _, pod := range b.Pods {
			if pod.Local && pod.Namespace == p.Namespace && selected.Matches(pod.Labels) {
				to = append(to, pod)
			}
		}
	case len(peers) == 0:
		to = b.Pods
	default:
		for j := range peers {
			to = append(to, b.peerPods(p.Namespace, &peers[j])...)
			to = append(to, b.blockPods(peers[j].IPBlock)...)
		}
		target = allowTarget(ingress) // each rule contains its peer
	}
	var rules []packetfilter.Rule
	for _, pod := range to {
		number, ip := pod.named(name, protocol), pod.ip(b.is6)
		if number == 0 || !ip.IsValid() {
			continue
		}
		r := packetfilter.Rule{Dst: packetfilter.Is(ip), Protocol: protocolName(protocol), Ports: packetfilter.Ports{First: number}, Target: target}
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// blockPods returns the pods whose address is in an IP block and not in its exceptions. block may
// be nil.
func (b *builder) blockPods(block *networkingv1.IPBlock) []*Pod {
	if block == nil {
		return nil
	}
	in := func(text string, ip netip.Addr) bool {
		prefix, err := netip.ParsePrefix(text)
		return err == nil && prefix.Contains(ip)
	}
	var out []*Pod
	for _, pod := range b.Pods {
		ip := pod.ip(b.is6)
		if in(block.CIDR, ip) && !slices.ContainsFunc(block.Except, func(e string) bool { return in(e, ip) }) {
			out = append(out, pod)
		}
	}
	return out
}

// peers builds the rules of the i-th ingress or egress rule of the policy p that match the peers:
// as the source of ingress packets or the destination of egress packets.
func (b *builder) peers(p *networkingv1.NetworkPolicy, i int, peers []networkingv1.NetworkPolicyPeer, ingress bool) []packetfilter.Rule {
	match := func(prefix netip.Prefix, target string) packetfilter.Rule {
		if ingress {
			return packetfilter.Rule{Src: packetfilter.In(prefix), Target: target}
		}
		return packetfilter.Rule{Dst: packetfilter.In(prefix), Target: target}
	}
	var rules []packetfilter.Rule
	seen := map[netip.Addr]bool{}
	for j := range peers {
		for _, pod := range b.peerPods(p.Namespace, &peers[j]) {
			if ip := pod.ip(b.is6); ip.IsValid() && !seen[ip] {
				seen[ip] = true
				rules = append(rules, match(netip.PrefixFrom(ip, ip.BitLen()), allowTarget(ingress)))
			}
		}
		block := peers[j].IPBlock
		if block == nil {
			continue
		}
		cidr, err := netip.ParsePrefix(block.CIDR)
		if err != nil || cidr.Addr().Is6() != b.is6 {
			continue
		}
		through := match(cidr.Masked(), allowTarget(ingress))
		var except []packetfilter.Rule
		for _, text := range block.Except {
			if e, err := netip.ParsePrefix(text); err == nil && e.Addr().Is6() == b.is6 {
				except = append(except, match(e.Masked(), packetfilter.Return))
			}
		}
		if len(except) == 0 {
			rules = append(rules, through)
			continue
		}
		// An exception applies to this block only.
		name := chainOf("block", ingress, p.Namespace, p.Name, i, j)
		b.set(name, append(except, through)...)
		rules = append(rules, match(cidr.Masked(), name))
	}
	return rules
}

// protocolName returns the name of a protocol in packet filter rules, such as "tcp".
func protocolName(p corev1.Protocol) string { return strings.ToLower(string(p)) }
