// Package netannotation defines the annotations by which the controllers and the nodes exchange data about the network.
package netannotation

import (
	"net/netip"
	"strings"
)

const (
	// Addresses is the annotation of a Node with the addresses at which other nodes can reach it directly, separated
	// by commas. Each has its subnet's prefix length, as in "192.0.2.7/24".
	Addresses = "network.hyperkube.io/addresses"
	// LoadBalancerNode is the annotation of a Service with the name of the node that announces its load balancer
	// addresses. The load balancer controller writes it for addresses of a pool.
	LoadBalancerNode = "network.hyperkube.io/load-balancer-node"
	// LoadBalancerStopping is the annotation of a Node that stops to announce load balancer addresses, with any value.
	// The node writes it when its process stops, so that the controller selects another node, and removes it when its
	// process starts.
	LoadBalancerStopping = "network.hyperkube.io/load-balancer-stopping"
)

// ParseAddresses returns the addresses in a value of the annotation Addresses. It ignores invalid ones.
func ParseAddresses(value string) []netip.Prefix {
	var out []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// FormatAddresses returns the value of the annotation Addresses for addresses.
func FormatAddresses(addresses []netip.Prefix) string {
	texts := make([]string, len(addresses))
	for i, p := range addresses {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}
