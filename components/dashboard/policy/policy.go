// Package policy computes which connections of a pod NetworkPolicies allow.
package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Connections are the connections of a pod that NetworkPolicies allow.
type Connections struct {
	// Ingress are the connections to the pod, and Egress those from it.
	Ingress Direction `json:"ingress"`
	Egress  Direction `json:"egress"`
}

// Direction is the connections of a pod in one direction.
type Direction struct {
	// Policies are the names of the NetworkPolicies that isolate the pod in this direction. If there are none, all connections are allowed.
	Policies []string `json:"policies"`
	// Rules are the allowed connections. A pod that is isolated without rules has no connections.
	Rules []Rule `json:"rules"`
}

// Rule is the connections that one peer of a rule allows.
type Rule struct {
	// Policy is the name of the NetworkPolicy.
	Policy string `json:"policy"`
	// Peer describes the peer, for example "pods app=web in namespace default".
	Peer string `json:"peer"`
	// Ports are the ports, for example "80/TCP". It is empty if all are allowed.
	Ports []string `json:"ports"`
	// Pods are the selected pods as NAMESPACE/NAME, sorted. It is empty for blocks of addresses and if the peer is any address.
	Pods []string `json:"pods"`
}

// Allowed returns the connections of pod that policies allow. Policies of other namespaces are ignored. namespaces and pods are those that
// peers can select. It returns an error if a selector is invalid.
func Allowed(pod *corev1.Pod, policies []networkingv1.NetworkPolicy, namespaces []corev1.Namespace, pods []corev1.Pod) (Connections, error) {
	c := cluster{labels: map[string]labels.Set{}, pods: pods}
	for _, n := range namespaces {
		c.labels[n.Name] = n.Labels
	}
	out := Connections{Ingress: newDirection(), Egress: newDirection()}
	for i := range policies {
		p := &policies[i]
		if p.Namespace != pod.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			return Connections{}, fmt.Errorf("parsing the selector of NetworkPolicy %s: %w", p.Name, err)
		}
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if applies(p, networkingv1.PolicyTypeIngress) {
			out.Ingress.Policies = append(out.Ingress.Policies, p.Name)
			for _, r := range p.Spec.Ingress {
				if err := c.add(&out.Ingress, p, r.From, r.Ports); err != nil {
					return Connections{}, err
				}
			}
		}
		if applies(p, networkingv1.PolicyTypeEgress) {
			out.Egress.Policies = append(out.Egress.Policies, p.Name)
			for _, r := range p.Spec.Egress {
				if err := c.add(&out.Egress, p, r.To, r.Ports); err != nil {
					return Connections{}, err
				}
			}
		}
	}
	return out, nil
}

// newDirection returns a direction without policies. Its slices are not nil, so that they are arrays in JSON.
func newDirection() Direction { return Direction{Policies: []string{}, Rules: []Rule{}} }

// applies reports whether a policy isolates pods in a direction. Without types, every policy does for ingress, and those with rules for
// egress too.
func applies(p *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) bool {
	if len(p.Spec.PolicyTypes) > 0 {
		return slices.Contains(p.Spec.PolicyTypes, direction)
	}
	return direction == networkingv1.PolicyTypeIngress || len(p.Spec.Egress) > 0
}

// cluster is what peers can select.
type cluster struct {
	labels map[string]labels.Set // of namespaces, by name
	pods   []corev1.Pod
}

// add adds the peers of a rule to a direction.
func (c cluster) add(d *Direction, p *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) error {
	names := portNames(ports)
	if len(peers) == 0 {
		d.Rules = append(d.Rules, Rule{Policy: p.Name, Peer: "any address", Ports: names, Pods: []string{}})
	}
	for _, peer := range peers {
		rule := Rule{Policy: p.Name, Ports: names, Pods: []string{}}
		if peer.IPBlock != nil {
			rule.Peer = "addresses " + peer.IPBlock.CIDR
			if len(peer.IPBlock.Except) > 0 {
				rule.Peer += " except " + strings.Join(peer.IPBlock.Except, ", ")
			}
		} else {
			var err error
			if rule.Peer, rule.Pods, err = c.selected(p, peer); err != nil {
				return err
			}
		}
		d.Rules = append(d.Rules, rule)
	}
	return nil
}

// selected returns the description and the pods of a peer that has selectors.
func (c cluster) selected(p *networkingv1.NetworkPolicy, peer networkingv1.NetworkPolicyPeer) (string, []string, error) {
	podSelector, namespaceSelector := labels.Everything(), labels.Everything()
	var err error
	if peer.PodSelector != nil {
		if podSelector, err = metav1.LabelSelectorAsSelector(peer.PodSelector); err != nil {
			return "", nil, fmt.Errorf("parsing a selector of NetworkPolicy %s: %w", p.Name, err)
		}
	}
	if peer.NamespaceSelector != nil {
		if namespaceSelector, err = metav1.LabelSelectorAsSelector(peer.NamespaceSelector); err != nil {
			return "", nil, fmt.Errorf("parsing a selector of NetworkPolicy %s: %w", p.Name, err)
		}
	}
	text := "all pods"
	if !podSelector.Empty() {
		text = "pods " + podSelector.String()
	}
	switch {
	case peer.NamespaceSelector == nil:
		text += " in namespace " + p.Namespace
	case namespaceSelector.Empty():
		text += " in all namespaces"
	default:
		text += " in namespaces " + namespaceSelector.String()
	}
	found := []string{}
	for _, one := range c.pods {
		inside := one.Namespace == p.Namespace
		if peer.NamespaceSelector != nil {
			set, exists := c.labels[one.Namespace]
			inside = exists && namespaceSelector.Matches(set)
		}
		if inside && podSelector.Matches(labels.Set(one.Labels)) {
			found = append(found, one.Namespace+"/"+one.Name)
		}
	}
	slices.Sort(found)
	return text, found, nil
}

// portNames returns the text of ports: PORT/PROTOCOL, FIRST-LAST/PROTOCOL, or "all PROTOCOL" without a port.
func portNames(ports []networkingv1.NetworkPolicyPort) []string {
	out := []string{}
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case p.Port == nil:
			out = append(out, "all "+string(protocol))
		case p.EndPort != nil:
			out = append(out, p.Port.String()+"-"+strconv.Itoa(int(*p.EndPort))+"/"+string(protocol))
		default:
			out = append(out, p.Port.String()+"/"+string(protocol))
		}
	}
	return out
}
