package identity

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/hostaddress"
)

// NodeAddresses are those by which this machine's node is known: one of each
// family that the ranges of a cluster have, in the order of these; of what the
// machine has no address of, none.
//
// https://kubernetes.io/docs/concepts/services-networking/dual-stack/
func NodeAddresses(ranges []string) ([]netip.Addr, error) {
	families, err := familiesOf(ranges)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, family := range families {
		addr, err := hostaddress.Of(family)
		if err != nil {
			return nil, err
		}
		if addr.IsValid() {
			out = append(out, addr)
		}
	}
	return out, nil
}

// familiesOf returns the address families of ranges, each once; IPv4 if there
// are no ranges.
func familiesOf(ranges []string) ([]int, error) {
	var out []int
	for _, text := range ranges {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.ConfigError(fmt.Errorf("%q is no address range: %w", text, err))
		}
		if family := hostaddress.Family(prefix.Addr()); !slices.Contains(out, family) {
			out = append(out, family)
		}
	}
	if len(out) == 0 {
		out = []int{netlink.FAMILY_V4}
	}
	return out, nil
}

// Texts are addresses as people write them.
func Texts(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}
