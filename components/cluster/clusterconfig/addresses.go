package clusterconfig

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/host/hostaddress"
)

// NodeAddresses returns the addresses of this machine's node: one for each IP family of the CIDRs in ranges, in their
// order. It omits families of which the machine has no address. If ranges is empty, it returns the IPv4 address.
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

// familiesOf returns the IP families of the CIDRs in ranges, without duplicates. It returns IPv4 if
// ranges is empty.
func familiesOf(ranges []string) ([]int, error) {
	var out []int
	for _, text := range ranges {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.ConfigError(fmt.Errorf("invalid CIDR %q: %w", text, err))
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

// Strings returns the addresses in their text form.
func Strings(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}
