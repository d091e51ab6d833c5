package loadbalancer

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/netannotation"
)

// Port is a port number with its protocol.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

// String returns the port in the form of `kubectl get services`, such as "80/TCP".
func (p Port) String() string { return strconv.Itoa(int(p.Number)) + "/" + string(p.Protocol) }

// ComponentPorts returns the ports that the components of a cluster serve at the addresses of nodes by default.
func ComponentPorts() []Port {
	var ports []Port
	for _, number := range []int32{layout.PortAPIServer, layout.PortEtcdClient, layout.PortEtcdPeer, layout.PortKubelet, layout.PortProxyHealthz} {
		ports = append(ports, Port{corev1.ProtocolTCP, number})
	}
	return ports
}

// byPort is the index of the Services that the controller handles by their ports.
const byPort = "loadBalancerPort"

// indexPorts returns the keys of a Service in the index byPort: one for each of its ports, such as "80/TCP". A
// Service that the controller does not handle has none.
func indexPorts(obj any) ([]string, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok || !handles(svc) {
		return nil, nil
	}
	var keys []string
	for _, p := range portsOf(svc) {
		keys = append(keys, p.String())
	}
	return keys, nil
}

// portsOf returns the ports of the Service svc, each with its protocol.
func portsOf(svc *corev1.Service) []Port {
	ports := make([]Port, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		ports = append(ports, Port{p.Protocol, p.Port})
	}
	return ports
}

// isForeign reports whether another load balancer assigned the addresses of svc: svc has addresses, but not this
// controller's finalizer.
func isForeign(svc *corev1.Service) bool {
	return len(svc.Status.LoadBalancer.Ingress) > 0 && !slices.Contains(svc.Finalizers, finalizer)
}

// handles reports whether the controller assigns addresses to a Service: it must be of type LoadBalancer, without the
// class of another load balancer, and must not be deleted.
func handles(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(svc.Spec.LoadBalancerClass, Class) == Class && svc.DeletionTimestamp == nil
}

// isLocal reports whether only nodes with endpoints of the Service accept its connections.
func isLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// precedes reports whether a keeps a port that both a and b need. The older Service keeps it; Services of the same age
// are ordered by UID.
func precedes(a, b *corev1.Service) bool {
	if a.UID == b.UID {
		return false
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// nodeState is the part of a Node that its use as a load balancer depends on.
type nodeState struct {
	// excluded is true if the node is not used: it has the label for that, or is being removed.
	excluded bool
	ready    bool
	ips      []netip.Addr // internal addresses

	// The fields below matter only for addresses of a pool.

	// stopping is true if the node stops to announce addresses.
	stopping bool
	// subnets are the published addresses with their subnets; none if the node is the only one.
	subnets []netip.Prefix
	// expired is true if the kubelet does not renew its Lease. stateOf does not set it.
	expired bool
}

// equal reports whether two nodes have the same state, so that no Service needs a sync.
func (s nodeState) equal(o nodeState) bool {
	return s.excluded == o.excluded && s.ready == o.ready && slices.Equal(s.ips, o.ips) &&
		s.stopping == o.stopping && slices.Equal(s.subnets, o.subnets)
}

// stateOf returns the state of n that decides whether its addresses are used for Services. A node that is being
// deleted does not serve as a load balancer.
func stateOf(n *corev1.Node) nodeState {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	_, stopping := n.Annotations[netannotation.LoadBalancerStopping]
	s := nodeState{
		excluded: excluded || n.DeletionTimestamp != nil, stopping: stopping,
		subnets: netannotation.ParseAddresses(n.Annotations[netannotation.Addresses]),
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			s.ips = append(s.ips, ip.Unmap())
		}
	}
	return s
}

// addresses returns the addresses of a Service: those of all ready nodes in its IP families, sorted. If a Service
// accepts connections only on nodes with endpoints, these are the addresses of the nodes in endpoints. If no node has
// endpoints, those of all ready nodes are returned, and if no node is ready, those of all nodes, because an address
// should not disappear during a restart.
func addresses(svc *corev1.Service, nodes []*corev1.Node, endpoints []*discoveryv1.EndpointSlice) []corev1.LoadBalancerIngress {
	usable := map[string]nodeState{}
	for _, n := range nodes {
		if s := stateOf(n); !s.excluded && len(s.ips) > 0 {
			usable[n.Name] = s
		}
	}
	usable = prefer(usable, func(_ string, s nodeState) bool { return s.ready })
	if isLocal(svc) {
		local := nodesOf(endpoints)
		usable = prefer(usable, func(name string, _ nodeState) bool { return local[name] })
	}
	var ips []netip.Addr
	for _, s := range usable {
		for _, ip := range s.ips {
			if slices.Contains(svc.Spec.IPFamilies, familyOf(ip)) {
				ips = append(ips, ip)
			}
		}
	}
	primary := func(ip netip.Addr) bool {
		return len(svc.Spec.IPFamilies) > 0 && familyOf(ip) == svc.Spec.IPFamilies[0]
	}
	slices.SortFunc(ips, func(a, b netip.Addr) int {
		if primary(a) != primary(b) {
			if primary(a) {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	var out []corev1.LoadBalancerIngress
	for _, ip := range slices.Compact(ips) {
		out = append(out, corev1.LoadBalancerIngress{IP: ip.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	return out
}

// prefer returns the nodes for which f returns true. If there is none, it returns all of them.
func prefer(nodes map[string]nodeState, f func(name string, s nodeState) bool) map[string]nodeState {
	out := map[string]nodeState{}
	for name, s := range nodes {
		if f(name, s) {
			out[name] = s
		}
	}
	if len(out) == 0 {
		return nodes
	}
	return out
}

// nodesOf returns the names of the nodes on which a ready endpoint of the EndpointSlices is.
func nodesOf(endpoints []*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, slice := range endpoints {
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && e.NodeName != nil {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// familyOf returns the IP family of an address.
func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
