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
)

const (
	// chainPolicy is created by package podnet, which also jumps to it.
	chainPolicy = "HK-POLICY"
	// chainPrefix is the prefix of all other chains of this package.
	chainPrefix = "HK-NP-"
	chainOut    = chainPrefix + "OUT"
	chainIn     = chainPrefix + "IN"

	accept, drop, returnTarget = "ACCEPT", "DROP", "RETURN"
)

// rule is one rule of a chain. Zero fields match everything.
type rule struct {
	src, dst netip.Prefix
	protocol corev1.Protocol
	// from and to are the first and last destination port.
	from, to uint16
	// in and out are link names.
	in, out string
	// established matches packets of established connections.
	established bool
	target      string
}

// text returns the rule in the format of iptables-restore.
func (r rule) text() string {
	var b strings.Builder
	if r.in != "" {
		fmt.Fprintf(&b, "-i %s ", r.in)
	}
	if r.out != "" {
		fmt.Fprintf(&b, "-o %s ", r.out)
	}
	if r.src.IsValid() {
		fmt.Fprintf(&b, "-s %s ", r.src)
	}
	if r.dst.IsValid() {
		fmt.Fprintf(&b, "-d %s ", r.dst)
	}
	if r.protocol != "" {
		name := strings.ToLower(string(r.protocol))
		fmt.Fprintf(&b, "-p %s ", name)
		switch {
		case r.from == 0:
		case r.from == r.to:
			fmt.Fprintf(&b, "-m %s --dport %d ", name, r.from)
		default:
			fmt.Fprintf(&b, "-m %s --dport %d:%d ", name, r.from, r.to)
		}
	}
	if r.established {
		b.WriteString("-m conntrack --ctstate RELATED,ESTABLISHED ")
	}
	return b.String() + "-j " + r.target
}

// Set contains the rules of each chain.
type Set map[string][]rule

// chainOf returns the name of a chain: a hash of parts, because the length of names is limited.
func chainOf(parts ...any) string {
	sum := sha256.Sum256([]byte(fmt.Sprintln(parts...)))
	return chainPrefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// builder builds the rules of one IP family.
type builder struct {
	*State
	is6 bool
	set Set
}

// build returns the rules that enforce the policies for the local pods in one IP family. bridge is
// the pods' bridge. The result always contains HK-POLICY, which is empty if there is nothing to
// enforce.
func build(s *State, bridge string, is6 bool) Set {
	b := &builder{State: s, is6: is6, set: Set{chainPolicy: nil}}
	var egress, ingress []rule
	for _, pod := range s.Pods {
		ip := pod.ip(is6)
		if !pod.Local || !ip.IsValid() {
			continue
		}
		if chain := b.pod(pod, ip, false); chain != "" {
			egress = append(egress, rule{src: single(ip), target: chain})
		}
		if chain := b.pod(pod, ip, true); chain != "" {
			ingress = append(ingress, rule{dst: single(ip), target: chain})
		}
	}
	if len(egress)+len(ingress) == 0 {
		return b.set
	}
	b.set[chainPolicy] = []rule{{in: bridge, target: chainOut}, {out: bridge, target: chainOut}}
	b.set[chainOut] = slices.Concat([]rule{{established: true, target: accept}}, egress, []rule{{target: chainIn}})
	b.set[chainIn] = append(ingress, rule{target: accept})
	return b.set
}

func single(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

// pod builds the chain of a pod for one direction, and the chains of the policies that select it.
// It returns "" if no policy isolates the pod.
func (b *builder) pod(pod *Pod, ip netip.Addr, ingress bool) string {
	var rules []rule
	for _, policy := range b.Policies {
		in, out := directions(&policy.Spec)
		if ingress && !in || !ingress && !out || policy.Namespace != pod.Namespace || !selector(&policy.Spec.PodSelector).Matches(pod.Labels) {
			continue
		}
		rules = append(rules, rule{target: b.policy(policy, ingress)})
	}
	if len(rules) == 0 {
		return ""
	}
	// A pod can always reach itself, for example through a Service.
	self := rule{src: single(ip), target: accept}
	if !ingress {
		self = rule{dst: single(ip), target: accept}
	}
	chain := chainOf("pod", ingress, pod.Namespace, pod.Name, ip)
	b.set[chain] = slices.Concat([]rule{self}, rules, []rule{{target: drop}})
	return chain
}

// allowTarget returns the target of packets that are allowed in a direction. Allowed egress packets
// continue with the ingress chain.
func allowTarget(ingress bool) string {
	if ingress {
		return accept
	}
	return chainIn
}

// policy builds the chain of a policy for one direction, unless it exists, and returns its name.
func (b *builder) policy(p *networkingv1.NetworkPolicy, ingress bool) string {
	chain := chainOf("policy", ingress, p.Namespace, p.Name)
	if _, exists := b.set[chain]; exists {
		return chain
	}
	b.set[chain] = nil
	var rules []rule
	if ingress {
		for i := range p.Spec.Ingress {
			rules = append(rules, b.clause(p, i, p.Spec.Ingress[i].From, p.Spec.Ingress[i].Ports, true)...)
		}
	} else {
		for i := range p.Spec.Egress {
			rules = append(rules, b.clause(p, i, p.Spec.Egress[i].To, p.Spec.Egress[i].Ports, false)...)
		}
	}
	b.set[chain] = rules
	return chain
}

// clause builds the rules of one ingress or egress rule of a policy: one rule for each port, which
// jumps to a separate chain of the peers.
func (b *builder) clause(p *networkingv1.NetworkPolicy, i int, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, ingress bool) []rule {
	target := allowTarget(ingress)
	if len(peers) > 0 {
		target = chainOf("peers", ingress, p.Namespace, p.Name, i)
		b.set[target] = b.peers(p, i, peers, ingress)
		if len(b.set[target]) == 0 {
			delete(b.set, target)
			return nil
		}
	}
	if len(ports) == 0 {
		return []rule{{target: target}}
	}
	var rules []rule
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		switch {
		case port.Port == nil:
			rules = append(rules, rule{protocol: protocol, target: target})
		case port.Port.Type == intstr.Int:
			r := rule{protocol: protocol, from: uint16(port.Port.IntVal), to: uint16(port.Port.IntVal), target: target}
			if port.EndPort != nil {
				r.to = uint16(*port.EndPort)
			}
			rules = append(rules, r)
		default:
			rules = append(rules, b.named(p, peers, port.Port.StrVal, protocol, ingress, target)...)
		}
	}
	return rules
}

// named builds the rules of a named port. Its number is defined by the destination pod.
func (b *builder) named(p *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, name string, protocol corev1.Protocol, ingress bool, target string) []rule {
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
	var rules []rule
	for _, pod := range to {
		number, ip := pod.named(name, protocol), pod.ip(b.is6)
		if number == 0 || !ip.IsValid() {
			continue
		}
		r := rule{dst: single(ip), protocol: protocol, from: number, to: number, target: target}
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// blockPods returns the pods with addresses in an IP block. block may be nil.
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

// peers builds the rules that match the source or destination of packets.
func (b *builder) peers(p *networkingv1.NetworkPolicy, i int, peers []networkingv1.NetworkPolicyPeer, ingress bool) []rule {
	match := func(prefix netip.Prefix, target string) rule {
		if ingress {
			return rule{src: prefix, target: target}
		}
		return rule{dst: prefix, target: target}
	}
	var rules []rule
	seen := map[netip.Prefix]bool{}
	for j := range peers {
		for _, pod := range b.peerPods(p.Namespace, &peers[j]) {
			if ip := pod.ip(b.is6); ip.IsValid() && !seen[single(ip)] {
				seen[single(ip)] = true
				rules = append(rules, match(single(ip), allowTarget(ingress)))
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
		var except []rule
		for _, text := range block.Except {
			if e, err := netip.ParsePrefix(text); err == nil && e.Addr().Is6() == b.is6 {
				except = append(except, match(e.Masked(), returnTarget))
			}
		}
		if len(except) == 0 {
			rules = append(rules, through)
			continue
		}
		// An exception applies to this block only.
		chain := chainOf("block", ingress, p.Namespace, p.Name, i, j)
		b.set[chain] = append(except, through)
		rules = append(rules, match(cidr.Masked(), chain))
	}
	return rules
}
