// Package policy enforces NetworkPolicies and ClusterNetworkPolicies for the pods of one node with packet filter rules.
//
// A packet to or from the node's pods traverses these chains:
//
//	HK-POLICY      jumps to HK-NP-OUT for packets from or to the pods' bridge
//	HK-NP-OUT      accepts packets of established connections; sends packets of pods
//	               that are isolated for egress to the pod's chain, and all others to HK-NP-IN
//	  pod's chain  accepts traffic of the pod to itself; jumps to the chain of the
//	               ClusterNetworkPolicies of the tier Admin that select it; jumps to
//	               the chains of the NetworkPolicies that select it, which send allowed
//	               packets to HK-NP-IN, and drops all others; without such
//	               NetworkPolicies it jumps to the chain of the tier Baseline
//	HK-NP-IN       does the same for ingress, but accepts allowed packets
//
// So each direction is checked once, without packet marks. The chains are in the mangle table,
// which packets traverse before the filter table and after destination NAT, so no rule in the
// filter table can accept a packet that a policy forbids. Package podnet creates HK-POLICY and
// jumps to it for forwarded packets. The node's own packets to its pods, such as probes, are not
// forwarded and never reach these chains, nor do packets from its pods to the node itself. Both are
// always allowed.
//
// https://kubernetes.io/docs/concepts/services-networking/network-policies/
// https://network-policy-api.sigs.k8s.io/
package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"hyperkube/internal/pod/podutil"
)

// Pod contains the fields of a pod that the policy rules depend on.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Labels          labels.Set
	IPs             []netip.Addr
	// Local is true for pods of this node.
	Local bool
	Ports []Port
}

// Port is a named port of a pod.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Number   int32
}

// podOf converts a pod. node is the name of this node. It returns nil if policies do not apply to
// the pod: it uses the host network, has terminated, or has no address yet.
func podOf(pod *corev1.Pod, node string) *Pod {
	if pod.Spec.HostNetwork || podutil.Terminal(pod) {
		return nil
	}
	p := &Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Local: pod.Spec.NodeName == node}
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			p.IPs = append(p.IPs, addr.Unmap())
		}
	}
	if len(p.IPs) == 0 {
		return nil
	}
	sidecars := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return !podutil.Sidecar(&c)
	})
	for _, c := range append(sidecars, pod.Spec.Containers...) {
		for _, port := range c.Ports {
			if port.Name == "" {
				continue
			}
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			p.Ports = append(p.Ports, Port{port.Name, protocol, port.ContainerPort})
		}
	}
	return p
}

// equal reports whether two pods are equal. Either may be nil.
func (p *Pod) equal(o *Pod) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.UID == o.UID && p.Namespace == o.Namespace && p.Name == o.Name && p.Local == o.Local && maps.Equal(p.Labels, o.Labels) &&
		slices.Equal(p.IPs, o.IPs) && slices.Equal(p.Ports, o.Ports)
}

// ip returns the pod's address of an IP family, or an invalid address.
func (p *Pod) ip(is6 bool) netip.Addr {
	for _, ip := range p.IPs {
		if ip.Is6() == is6 {
			return ip
		}
	}
	return netip.Addr{}
}

// named returns the number of the port that the pod's containers define with this name and
// protocol, or 0 if there is none.
func (p *Pod) named(name string, protocol corev1.Protocol) uint16 {
	for _, port := range p.Ports {
		if port.Name == name && port.Protocol == protocol {
			return uint16(port.Number)
		}
	}
	return 0
}

// State is the input from which rules are built.
type State struct {
	// Pods of the cluster.
	Pods []*Pod
	// Namespaces maps namespace names to labels.
	Namespaces map[string]labels.Set
	// Policies in the order in which their rules are written.
	Policies []*networkingv1.NetworkPolicy
	// ClusterPolicies by precedence within their tiers.
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy
}

// selector converts a label selector of a policy. An invalid selector matches nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return sel
}

// directions reports in which directions a policy isolates the pods that it selects. Without
// policyTypes, it isolates for egress only if it has egress rules.
func directions(spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	return slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress), slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// peerPods returns the pods that a peer of a policy selects by labels. ns is the namespace of the
// policy. It returns none for an IP block.
func (s *State) peerPods(ns string, peer *networkingv1.NetworkPolicyPeer) []*Pod {
	if peer.IPBlock != nil {
		return nil
	}
	pods := labels.Everything()
	if peer.PodSelector != nil {
		pods = selector(peer.PodSelector)
	}
	var namespaces labels.Selector
	if peer.NamespaceSelector != nil {
		namespaces = selector(peer.NamespaceSelector)
	}
	var out []*Pod
	for _, p := range s.Pods {
		if namespaces == nil && p.Namespace != ns || namespaces != nil && !namespaces.Matches(s.Namespaces[p.Namespace]) {
			continue
		}
		if pods.Matches(p.Labels) {
			out = append(out, p)
		}
	}
	return out
}
