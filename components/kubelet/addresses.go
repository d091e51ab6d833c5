package kubelet

import (
	"errors"
	"fmt"
	"net/netip"

	"hyperkube/internal/host/hostaddress"
)

// nodeIPs returns the node's IP addresses: the configured ones, or all addresses of the machine
// when none are configured. An unspecified address, 0.0.0.0 or ::, is replaced by the machine's
// address of that family.
func nodeIPs(given []netip.Addr) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(given))
	for _, addr := range given {
		addr, err := hostaddress.Resolve(addr)
		if err != nil {
			return nil, fmt.Errorf("--node-ip: %w", err)
		}
		out = append(out, addr)
	}
	if len(out) > 0 {
		return out, nil
	}
	out, err := hostaddress.All()
	if err != nil {
		return nil, fmt.Errorf("finding the node's addresses: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("the node has no IP address: set one with --node-ip")
	}
	return out, nil
}
