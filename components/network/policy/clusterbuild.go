package policy

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"hyperkube/internal/host/packetfilter"
)

// compareClusterPolicies orders ClusterNetworkPolicies of a tier by precedence: by priority, and by name if the priority is
// the same.
func compareClusterPolicies(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
	return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
}

// clusterRule is an ingress or egress rule of a ClusterNetworkPolicy.
type clusterRule struct {
	action    policyv1alpha2.ClusterNetworkPolicyRuleAction
	peers     []clusterPeer
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
}

// clusterPeer is a peer of a rule of a ClusterNetworkPolicy. If all fields are nil, the peer has a field that this version
// does not know.
type clusterPeer struct {
	namespaces *metav1.LabelSelector
	pods       *policyv1alpha2.NamespacedPod
	networks   []policyv1alpha2.CIDR // only of egress rules
}

// known reports whether the peer has a field that this version knows.
func (p *clusterPeer) known() bool { return p.namespaces != nil || p.pods != nil || p.networks != nil }

// clusterRules returns the rules of p for one direction.
func clusterRules(p *policyv1alpha2.ClusterNetworkPolicy, ingress bool) []clusterRule {
	var out []clusterRule
	if ingress {
		for _, r := range p.Spec.Ingress {
			rule := clusterRule{action: r.Action, protocols: r.Protocols}
			for _, peer := range r.From {
				rule.peers = append(rule.peers, clusterPeer{namespaces: peer.Namespaces, pods: peer.Pods})
			}
			out = append(out, rule)
		}
		return out
	}
	for _, r := range p.Spec.Egress {
		rule := clusterRule{action: r.Action, protocols: r.Protocols}
		for _, peer := range r.To {
			rule.peers = append(rule.peers, clusterPeer{namespaces: peer.Namespaces, pods: peer.Pods, networks: peer.Networks})
		}
		out = append(out, rule)
	}
	return out
}

// tier builds the chain of a tier of ClusterNetworkPolicies for a pod and one direction, unless it exists, and returns its
// name. It returns "" if the tier has no rules for the pod. Pods that the same policies select share a chain.
//
// The chain accepts or drops a packet for which the first matching rule decides that. It returns for the action Pass, and
// if no rule matches, so evaluation continues with the next tier.
func (b *builder) tier(tier policyv1alpha2.Tier, pod *Pod, ingress bool) string {
	var policies []*policyv1alpha2.ClusterNetworkPolicy
	parts := []any{"tier", tier, ingress}
	for _, p := range b.ClusterPolicies {
		if p.Spec.Tier == tier && len(clusterRules(p, ingress)) > 0 && b.isSubject(p, pod) {
			policies = append(policies, p)
			parts = append(parts, p.Name)
		}
	}
	if len(policies) == 0 {
		return ""
	}
	name := chainOf(parts...)
	if _, exists := b.chains[chain(name)]; exists {
		return name
	}
	var rules []packetfilter.Rule
	for _, p := range policies {
		for i, r := range clusterRules(p, ingress) {
			rules = append(rules, b.clusterRule(p, i, r, ingress)...)
		}
	}
	b.set(name, rules...)
	return name
}

// isSubject reports whether a ClusterNetworkPolicy applies to a pod.
func (s *State) isSubject(p *policyv1alpha2.ClusterNetworkPolicy, pod *Pod) bool {
	subject := clusterPeer{namespaces: p.Spec.Subject.Namespaces, pods: p.Spec.Subject.Pods}
	return s.clusterSelector(&subject)(pod)
}

// clusterSelector returns a function that reports whether a peer or subject selects a pod by labels. It selects none if
// the peer has networks.
func (s *State) clusterSelector(peer *clusterPeer) func(*Pod) bool {
	var namespaces labels.Selector
	pods := labels.Everything()
	switch {
	case peer.namespaces != nil:
		namespaces = selector(peer.namespaces)
	case peer.pods != nil:
		namespaces, pods = selector(&peer.pods.NamespaceSelector), selector(&peer.pods.PodSelector)
	default:
		return func(*Pod) bool { return false }
	}
	return func(p *Pod) bool {
		return namespaces.Matches(s.Namespaces[p.Namespace]) && pods.Matches(p.Labels)
	}
}

// clusterRule builds the packet filter rules of the i-th ingress or egress rule of p. A rule with a peer or protocol that
// this version does not know must not allow more than the user intended: it matches nothing if its action is Accept, and
// otherwise drops all packets.
func (b *builder) clusterRule(p *policyv1alpha2.ClusterNetworkPolicy, i int, r clusterRule, ingress bool) []packetfilter.Rule {
	target := packetfilter.Drop
	switch r.action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		target = allowTarget(ingress)
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		target = packetfilter.Return
	}
	unknownPeer := slices.ContainsFunc(r.peers, func(peer clusterPeer) bool { return !peer.known() })
	if unknownPeer || slices.ContainsFunc(r.protocols, unknownProtocol) {
		if r.action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept {
			return nil
		}
		return []packetfilter.Rule{{Target: packetfilter.Drop}}
	}
	peers := b.clusterPeers(r.peers)
	matches := b.clusterPorts(p, &r, ingress)
	if len(peers) == 0 || len(matches) == 0 {
		return nil
	}
	match := func(m packetfilter.Rule, peer netip.Prefix, target string) packetfilter.Rule {
		if ingress {
			m.Src = packetfilter.In(peer)
		} else {
			m.Dst = packetfilter.In(peer)
		}
		m.Target = target
		return m
	}
	var rules []packetfilter.Rule
	// A chain for the peers avoids a rule for each pair of peer and port. It is not possible for Pass, whose target returns to
	// the caller of this chain, nor for named ports, whose rules contain a pod.
	if len(matches) > 1 && len(peers) > 1 && target != packetfilter.Return && !slices.ContainsFunc(matches, hasPod) {
		name := chainOf("cluster peers", ingress, p.Spec.Tier, p.Name, i)
		for _, peer := range peers {
			rules = append(rules, match(packetfilter.Rule{}, peer, target))
		}
		b.set(name, rules...)
		rules = nil
		for _, m := range matches {
			m.Target = name
			rules = append(rules, m)
		}
		return rules
	}
	for _, m := range matches {
		for _, peer := range peers {
			if !ingress && hasPod(m) {
				// The destination is the pod with the named port, which must be a peer.
				if dst := m.Dst.Range; peer.Contains(dst.Addr()) {
					m.Target = target
					rules = append(rules, m)
					break
				}
				continue
			}
			rules = append(rules, match(m, peer, target))
		}
	}
	return rules
}

// hasPod reports whether a match contains the pod with a named port.
func hasPod(m packetfilter.Rule) bool { return m.Dst.Range.IsValid() }

// unknownProtocol reports whether no field of a protocol is set that this version knows.
func unknownProtocol(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
	return p.TCP == nil && p.UDP == nil && p.SCTP == nil && p.DestinationNamedPort == ""
}

// clusterPeers returns the addresses of peers in the IP family: pods and networks, sorted and without duplicates.
func (b *builder) clusterPeers(peers []clusterPeer) []netip.Prefix {
	var out []netip.Prefix
	for i := range peers {
		selects := b.clusterSelector(&peers[i])
		for _, pod := range b.Pods {
			if ip := pod.ip(b.is6); ip.IsValid() && selects(pod) {
				out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
		for _, text := range peers[i].networks {
			if cidr, err := netip.ParsePrefix(string(text)); err == nil && cidr.Addr().Is6() == b.is6 {
				out = append(out, cidr.Masked())
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// clusterPorts returns the matches of the protocols of a rule, without peers. Without protocols this is one match of all
// packets. A named port has one match for each pod with that port: the subjects of p for ingress, and all pods for egress.
func (b *builder) clusterPorts(p *policyv1alpha2.ClusterNetworkPolicy, r *clusterRule, ingress bool) []packetfilter.Rule {
	if len(r.protocols) == 0 {
		return []packetfilter.Rule{{}}
	}
	var out []packetfilter.Rule
	number := func(protocol corev1.Protocol, port *policyv1alpha2.Port) {
		m := packetfilter.Rule{Protocol: protocolName(protocol)}
		switch {
		case port == nil:
		case port.Range != nil:
			m.Ports = packetfilter.Ports{First: uint16(port.Range.Start), Last: uint16(port.Range.End)}
		default:
			m.Ports = packetfilter.Ports{First: uint16(port.Number)}
		}
		out = append(out, m)
	}
	for _, protocol := range r.protocols {
		switch {
		case protocol.TCP != nil:
			number(corev1.ProtocolTCP, protocol.TCP.DestinationPort)
		case protocol.UDP != nil:
			number(corev1.ProtocolUDP, protocol.UDP.DestinationPort)
		case protocol.SCTP != nil:
			number(corev1.ProtocolSCTP, protocol.SCTP.DestinationPort)
		default:
			for _, pod := range b.Pods {
				ip := pod.ip(b.is6)
				if !ip.IsValid() || ingress && (!pod.Local || !b.isSubject(p, pod)) {
					continue
				}
				for _, port := range pod.Ports {
					if port.Name == protocol.DestinationNamedPort {
						out = append(out, packetfilter.Rule{Dst: packetfilter.Is(ip), Protocol: protocolName(port.Protocol), Ports: packetfilter.Ports{First: uint16(port.Number)}})
					}
				}
			}
		}
	}
	return out
}
