// Package addresspool contains the addresses that the load balancer controller assigns to Services, in the notation of
// --load-balancer-pool.
package addresspool

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// addressRange is the inclusive range of addresses from first to last, which have the same IP family.
type addressRange struct {
	first, last netip.Addr
	text        string // as the user wrote it
}

// contains reports whether a is in the range. Addresses of the other IP family are not.
func (r addressRange) contains(a netip.Addr) bool {
	return a.BitLen() == r.first.BitLen() && a.Compare(r.first) >= 0 && a.Compare(r.last) <= 0
}

// Pool is a set of addresses. The zero value is empty. It is safe for concurrent use.
type Pool struct {
	ranges []addressRange // in the order of the user
}

// Parse returns the pool of the addresses in texts, each of which is a CIDR ("192.0.2.0/28"), a range
// ("192.0.2.10-192.0.2.20") or a single address. Ranges must not overlap, and must not contain addresses that no
// machine can have.
func Parse(texts []string) (Pool, error) {
	var p Pool
	for _, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return Pool{}, err
		}
		for _, o := range p.ranges {
			if r.contains(o.first) || o.contains(r.first) {
				return Pool{}, fmt.Errorf("%s overlaps with %s: remove one of them", r.text, o.text)
			}
		}
		p.ranges = append(p.ranges, r)
	}
	return p, nil
}

// parseRange parses one element of a pool.
func parseRange(text string) (addressRange, error) {
	r := addressRange{text: text}
	var err error
	if from, to, found := strings.Cut(text, "-"); found {
		if r.first, err = netip.ParseAddr(strings.TrimSpace(from)); err == nil {
			r.last, err = netip.ParseAddr(strings.TrimSpace(to))
		}
	} else if strings.Contains(text, "/") {
		var prefix netip.Prefix
		prefix, err = netip.ParsePrefix(text)
		if err == nil && prefix.Masked() != prefix {
			err = fmt.Errorf("the address has bits beyond the prefix length; write %s", prefix.Masked())
		}
		r.first, r.last = prefix.Addr(), lastOf(prefix)
	} else {
		r.first, err = netip.ParseAddr(text)
		r.last = r.first
	}
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		return r, fmt.Errorf("%q is not a CIDR such as 192.0.2.0/28, or a range such as 192.0.2.10-192.0.2.20, of addresses for Services: %w", text, err)
	}
	return r, nil
}

// notForServices are the addresses that cannot be assigned to Services, because they are not those of one machine in
// a network, with the reason.
var notForServices = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "addresses without a network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses"},
	{netip.MustParsePrefix("224.0.0.0/3"), "multicast or reserved addresses"},
	{netip.MustParsePrefix("::/127"), "loopback addresses"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4 addresses in the notation of IPv6"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses"},
}

// validate reports an empty range, and addresses that Services cannot have.
func (r addressRange) validate() error {
	switch {
	case r.first.Zone() != "" || r.last.Zone() != "":
		return errors.New("addresses cannot have a zone")
	case r.first.BitLen() != r.last.BitLen():
		return errors.New("the first and the last address are of different IP families")
	case r.last.Less(r.first):
		return errors.New("the last address is below the first one")
	}
	for _, n := range notForServices {
		if r.overlaps(n.prefix) {
			return fmt.Errorf("it contains %s", n.what)
		}
	}
	return nil
}

// overlaps reports whether the range and prefix have an address in common.
func (r addressRange) overlaps(prefix netip.Prefix) bool {
	return prefix.Contains(r.first) || r.contains(prefix.Masked().Addr())
}

// lastOf returns the last address in prefix, which must be valid or the zero Prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for i := range bytes {
		fixed := min(max(prefix.Bits()-8*i, 0), 8)
		bytes[i] |= byte(0xff >> fixed)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// IsEmpty reports whether the pool has no addresses.
func (p Pool) IsEmpty() bool { return len(p.ranges) == 0 }

// String returns the pool in the notation of Parse, separated by commas.
func (p Pool) String() string {
	texts := make([]string, len(p.ranges))
	for i, r := range p.ranges {
		texts[i] = r.text
	}
	return strings.Join(texts, ",")
}

// Contains reports whether a is in the pool.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.contains(a) })
}

// HasFamily reports whether the pool has addresses of an IP family.
func (p Pool) HasFamily(ipv6 bool) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.first.Is6() == ipv6 })
}

// CheckDisjoint returns an error if the pool and one of the prefixes have an address in common. what describes the
// prefixes in the error, for example "the CIDR of pods".
func (p Pool) CheckDisjoint(what string, prefixes ...netip.Prefix) error {
	for _, prefix := range prefixes {
		for _, r := range p.ranges {
			if !r.overlaps(prefix) {
				continue
			}
			if prefix.IsSingleIP() {
				return fmt.Errorf("%s contains %s, %s: choose addresses that no machine uses", r.text, prefix.Addr(), what)
			}
			return fmt.Errorf("%s overlaps with %s, %s: choose unused addresses of the network of the nodes", r.text, what, prefix)
		}
	}
	return nil
}

// Addresses returns the addresses of an IP family in the order in which they are assigned. It omits addresses that
// some devices do not accept as those of a machine: IPv4 addresses that end in 0 or 255, and IPv6 addresses whose
// last 64 bits are zero. A Service can request these.
func (p Pool) Addresses(ipv6 bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range p.ranges {
			if r.first.Is6() != ipv6 {
				continue
			}
			for a := r.first; a.IsValid() && a.Compare(r.last) <= 0; a = a.Next() {
				if !isAvoided(a) && !yield(a) {
					return
				}
			}
		}
	}
}

// isAvoided reports whether some devices do not accept a as the address of a machine.
func isAvoided(a netip.Addr) bool {
	bytes := a.AsSlice()
	if a.Is4() {
		return bytes[3] == 0 || bytes[3] == 255
	}
	return !slices.ContainsFunc(bytes[8:], func(b byte) bool { return b != 0 })
}
