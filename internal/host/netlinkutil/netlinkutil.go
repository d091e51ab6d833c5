// Package netlinkutil reads complete lists of links, addresses and routes from the kernel. If a list
// changes while it is read, which is frequent on nodes where pods start and stop, the kernel
// reports that the result may be incomplete, and the list must be read again.
package netlinkutil

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// maxAttempts is the maximum number of attempts to read a list. One attempt takes less than a
// millisecond.
const maxAttempts = 50

// List calls list, which reads a list from the kernel, again as long as a change has interrupted
// it, up to maxAttempts times. It then returns the incomplete list and ErrDumpInterrupted.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range maxAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// Addresses lists the addresses of a netlink family of link, or of all links if link is nil.
func Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
}

// Routes lists the routes of a netlink family in the main table.
func Routes(family int) ([]netlink.Route, error) {
	return List(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
}
