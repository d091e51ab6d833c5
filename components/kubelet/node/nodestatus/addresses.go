package nodestatus

import (
	"errors"
	"fmt"
	"net/netip"

	"hyperkube/internal/host/hostaddress"
)

// Addresses returns the node's IP addresses: the configured ones, or all addresses of the machine if none are
// configured. An unspecified address, 0.0.0.0 or ::, is replaced by the machine's address of that family. It
// returns an error if there is no address.
func Addresses(configured []netip.Addr) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(configured))
	for _, addr := range configured {
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
