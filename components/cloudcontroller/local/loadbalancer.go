package local

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/utils/ptr"
)

// balancer implements cloudprovider.LoadBalancer. All Services have the addresses of the nodes, at which the service
// proxy of each node accepts connections to their ports. So two Services cannot have the same port: the older one keeps
// it.
type balancer struct {
	services corelisters.ServiceLister
	kube     kubernetes.Interface
}

// GetLoadBalancer returns the addresses in the status of a Service, or false if it has none.
func (b *balancer) GetLoadBalancer(_ context.Context, _ string, svc *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	return svc.Status.LoadBalancer.DeepCopy(), len(svc.Status.LoadBalancer.Ingress) > 0, nil
}

// GetLoadBalancerName returns the namespace and name of a Service.
func (b *balancer) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return svc.Namespace + "/" + svc.Name
}

// EnsureLoadBalancer returns the internal addresses of nodes in the IP families of a Service. Nodes that are not ready are
// included, because the caller does not call again when a node becomes ready: it expects that a load balancer checks
// that. It returns an error if an
// older Service has one of the ports, or if nodes have no such address; the caller tries again with a back-off.
func (b *balancer) EnsureLoadBalancer(_ context.Context, _ string, svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	if err := b.checkPorts(svc); err != nil {
		return nil, err
	}
	status := &corev1.LoadBalancerStatus{}
	for _, family := range svc.Spec.IPFamilies {
		for _, ip := range addressesOf(nodes, family) {
			status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: ip.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
		}
	}
	if len(status.Ingress) == 0 {
		return nil, fmt.Errorf("no node has an internal address of the IP families %v of Service %s/%s", svc.Spec.IPFamilies, svc.Namespace, svc.Name)
	}
	return status, nil
}

// UpdateLoadBalancer writes the addresses of nodes to the status of a Service, if they have changed.
func (b *balancer) UpdateLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) error {
	status, err := b.EnsureLoadBalancer(ctx, cluster, svc, nodes)
	if err != nil || servicehelpers.LoadBalancerStatusEqual(status, &svc.Status.LoadBalancer) {
		return err
	}
	changed := svc.DeepCopy()
	changed.Status.LoadBalancer = *status
	if _, err := servicehelpers.PatchService(b.kube.CoreV1(), svc, changed); err != nil {
		return fmt.Errorf("updating addresses of service: %w", err)
	}
	return nil
}

// EnsureLoadBalancerDeleted does nothing: the service proxies do not accept connections for a Service without addresses.
func (b *balancer) EnsureLoadBalancerDeleted(context.Context, string, *corev1.Service) error {
	return nil
}

// checkPorts returns an error if an older Service with addresses of nodes has a port of svc.
func (b *balancer) checkPorts(svc *corev1.Service) error {
	all, err := b.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	for _, other := range all {
		if other.UID == svc.UID || other.Spec.Type != corev1.ServiceTypeLoadBalancer || other.Spec.LoadBalancerClass != nil || !precedes(other, svc) {
			continue
		}
		for _, p := range svc.Spec.Ports {
			if slices.ContainsFunc(other.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol }) {
				return fmt.Errorf("port %d/%s is in use by Service %s/%s", p.Port, p.Protocol, other.Namespace, other.Name)
			}
		}
	}
	return nil
}

// precedes reports whether a keeps a port that both a and b need: the older Service, or with the same age the one with
// the smaller UID.
func precedes(a, b *corev1.Service) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// addressesOf returns the internal addresses of an IP family of nodes, sorted.
func addressesOf(nodes []*corev1.Node, family corev1.IPFamily) []netip.Addr {
	var out []netip.Addr
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err == nil && a.Type == corev1.NodeInternalIP && ip.Unmap().Is4() == (family == corev1.IPv4Protocol) {
				out = append(out, ip.Unmap())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
