package kubelet

import (
	"errors"
	"fmt"
	"net/netip"

	"hyperkube/internal/hostaddress"
)

// nodeIPs finds the node's addresses. Of those that were given an unspecified one, 0.0.0.0
// or ::, stands for whatever the machine has of that family.
func nodeIPs(given []netip.Addr) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(given))
	for _, addr := range given {
		addr, err := hostaddress.Meant(addr)
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
		return nil, errors.New("the node has no address: give one with --node-ip")
	}
	return out, nil
}
