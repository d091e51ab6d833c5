// Package netdump gets whole lists from the kernel's network: of links, addresses, routes.
// The kernel tells when a list has changed while it was read, as it does all the time where
// pods come and go; what was read then may lack something.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often a list is read that changes all the time. One takes less than a
// millisecond.
const tries = 50

// Whole returns what list returns, which is read again as long as it changed meanwhile.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// Addresses are those of a link, or of all for nil, of a family of netlink's.
func Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
}

// Routes are those of the main table, of a family of netlink's.
func Routes(family int) ([]netlink.Route, error) {
	return Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
}
