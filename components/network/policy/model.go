// Package policy enforces NetworkPolicies for the pods of one node, by rules
// of iptables.
//
// A packet between the node's pods and anything passes, in this order:
//
//	HK-POLICY      what comes from or goes to the pods' bridge goes to HK-NP-OUT
//	HK-NP-OUT      answers pass; packets of pods that are isolated for egress
//	               go to the chain of the pod; the rest goes to HK-NP-IN
//	  pod's chain  the pod itself passes; the chains of the policies that
//	               select it lead what they allow to HK-NP-IN; the rest is dropped
//	HK-NP-IN       the same for ingress, where what is allowed is accepted
//
// So each direction is asked once, and needs no marks. They are in the table
// mangle, which packets pass before filter and after their destination is known:
// nobody's rules there let past what a policy forbids. internal/podnet makes
// HK-POLICY and leads there what is forwarded. The node's
// own packets to its pods, probes among them, are not forwarded and so never
// come here, nor do its pods' to the node itself: both are always allowed.
//
// https://kubernetes.io/docs/concepts/services-networking/network-policies/
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

	"hyperkube/internal/podfacts"
)

// Pod is what matters of a pod.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Labels          labels.Set
	IPs             []netip.Addr
	// Local: it is on this node.
	Local bool
	Ports []Port
}

// Port is a named port of a pod.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Number   int32
}

// podOf returns what matters of a pod, nil if policies do not concern it: it has
// no address of its own, or has ended.
func podOf(pod *corev1.Pod, node string) *Pod {
	if pod.Spec.HostNetwork || podfacts.Terminal(pod) {
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
		return !podfacts.Sidecar(&c)
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

// equal tells whether two pods, each of which may be nil, are alike in all that
// matters.
func (p *Pod) equal(o *Pod) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.UID == o.UID && p.Namespace == o.Namespace && p.Name == o.Name && p.Local == o.Local && maps.Equal(p.Labels, o.Labels) &&
		slices.Equal(p.IPs, o.IPs) && slices.Equal(p.Ports, o.Ports)
}

// ip returns the pod's address of a family, none if it has none.
func (p *Pod) ip(is6 bool) netip.Addr {
	for _, ip := range p.IPs {
		if ip.Is6() == is6 {
			return ip
		}
	}
	return netip.Addr{}
}

// named returns the number of a named port, 0 if the pod has none of that name.
func (p *Pod) named(name string, protocol corev1.Protocol) uint16 {
	for _, port := range p.Ports {
		if port.Name == name && port.Protocol == protocol {
			return uint16(port.Number)
		}
	}
	return 0
}

// State is what rules follow from.
type State struct {
	// Pods of the cluster.
	Pods []*Pod
	// Namespaces are the labels of each.
	Namespaces map[string]labels.Set
	// Policies in the order in which they are to be asked.
	Policies []*networkingv1.NetworkPolicy
}

// selector makes a matcher; one that the API server would have refused matches
// nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return sel
}

// directions tells for which directions a policy isolates.
func directions(spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	return slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress), slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// peerPods returns the pods that a peer selects; ns is the policy's namespace.
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
