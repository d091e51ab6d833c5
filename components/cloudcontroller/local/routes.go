package local

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// routes implements cloudprovider.Routes. The pod network of each node creates the routes to the pod CIDRs of all other
// Nodes, so a route exists as soon as a Node has a pod CIDR, and until the Node is deleted.
type routes struct {
	nodes corelisters.NodeLister
}

// ListRoutes returns a route for each pod CIDR of each Node.
func (r *routes) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var out []*cloudprovider.Route
	for _, n := range nodes {
		for _, cidr := range n.Spec.PodCIDRs {
			out = append(out, &cloudprovider.Route{Name: n.Name + "-" + cidr, TargetNode: types.NodeName(n.Name), DestinationCIDR: cidr})
		}
	}
	return out, nil
}

// CreateRoute returns an error unless the node has the pod CIDR, because then its route exists.
func (r *routes) CreateRoute(_ context.Context, _, _ string, route *cloudprovider.Route) error {
	node, err := r.nodes.Get(string(route.TargetNode))
	if err != nil {
		return fmt.Errorf("getting node: %w", err)
	}
	if !slices.Contains(node.Spec.PodCIDRs, route.DestinationCIDR) {
		return fmt.Errorf("node %s does not have the pod CIDR %s, and the pod network creates no other routes", node.Name, route.DestinationCIDR)
	}
	return nil
}

// DeleteRoute returns an error if the Node still has the pod CIDR, because the pod network keeps the route until then.
func (r *routes) DeleteRoute(_ context.Context, _ string, route *cloudprovider.Route) error {
	node, err := r.nodes.Get(string(route.TargetNode))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("getting node: %w", err)
	}
	if slices.Contains(node.Spec.PodCIDRs, route.DestinationCIDR) {
		return fmt.Errorf("node %s still has the pod CIDR %s: its route is deleted with the Node", node.Name, route.DestinationCIDR)
	}
	return nil
}
