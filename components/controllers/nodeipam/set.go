package nodeipam

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"net/netip"
)

// errFull is the error of allocate if no CIDR is left.
var errFull = errors.New("CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range")

// maxBits limits the number of node CIDRs in a cluster CIDR, as a power of two.
const maxBits = 16

// cidrSet allocates the parts of one CIDR, all of the same size, in ascending order. It reuses released parts only
// after it has allocated the last part. It is not safe for concurrent use.
type cidrSet struct {
	cluster netip.Prefix
	size    int      // prefix length of a part
	used    []uint64 // a bitmap of the parts
	count   int      // total number of parts
	free    int
	next    int // where to search first
}

// newSet returns a set of the parts of cluster with prefix length size; all parts are free. It returns an error if the
// size does not fit in the cluster's CIDR, or results in more than 2^maxBits parts.
func newSet(cluster netip.Prefix, size int) (*cidrSet, error) {
	cluster = cluster.Masked()
	if size < cluster.Bits() || size > cluster.Addr().BitLen() {
		return nil, fmt.Errorf("node CIDR mask size %d does not fit in the cluster CIDR %s", size, cluster)
	}
	if size-cluster.Bits() > maxBits {
		return nil, fmt.Errorf("node CIDR mask size %d splits the cluster CIDR %s into more than 2^%d parts", size, cluster, maxBits)
	}
	n := 1 << (size - cluster.Bits())
	return &cidrSet{cluster: cluster, size: size, used: make([]uint64, (n+63)/64), count: n, free: n}, nil
}

// part returns the part of the cluster's CIDR with the index i.
func (s *cidrSet) part(i int) netip.Prefix {
	base := s.cluster.Addr().AsSlice()
	n := new(big.Int).SetBytes(base)
	shift := uint(len(base)*8 - s.size)
	n.Or(n, new(big.Int).Lsh(big.NewInt(int64(i)), shift))
	addr, _ := netip.AddrFromSlice(n.FillBytes(make([]byte, len(base))))
	return netip.PrefixFrom(addr, s.size)
}

// span returns the half-open interval of the indexes of parts that overlap p. It is empty if there are none.
func (s *cidrSet) span(p netip.Prefix) (from, to int) {
	p = p.Masked()
	if !p.IsValid() || !s.cluster.Overlaps(p) {
		return 0, 0
	}
	if p.Bits() <= s.cluster.Bits() {
		return 0, s.count
	}
	b := p.Addr().AsSlice()
	n := new(big.Int).SetBytes(b)
	n.Xor(n, new(big.Int).SetBytes(s.cluster.Addr().AsSlice()))
	n.Rsh(n, uint(len(b)*8-s.size))
	from = int(n.Int64())
	to = from + 1
	if p.Bits() < s.size {
		to = from + 1<<(s.size-p.Bits())
	}
	return from, to
}

// containing returns the part that contains p. It returns the zero Prefix if p is not smaller than a part, or outside
// of the cluster's CIDR.
func (s *cidrSet) containing(p netip.Prefix) netip.Prefix {
	if p.Bits() <= s.size || !s.cluster.Overlaps(p) {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(p.Addr(), s.size).Masked()
}

// has reports whether the part of the CIDR with index i is allocated.
func (s *cidrSet) has(i int) bool { return s.used[i/64]&(1<<(i%64)) != 0 }

// markUsed marks all parts that overlap p as used.
func (s *cidrSet) markUsed(p netip.Prefix) {
	from, to := s.span(p)
	for i := from; i < to; i++ {
		if !s.has(i) {
			s.used[i/64] |= 1 << (i % 64)
			s.free--
		}
	}
}

// release marks all parts that overlap p as free, even a part that p covers only partially.
func (s *cidrSet) release(p netip.Prefix) {
	from, to := s.span(p)
	for i := from; i < to; i++ {
		if s.has(i) {
			s.used[i/64] &^= 1 << (i % 64)
			s.free++
		}
	}
}

// allocate marks a free part as used and returns it. It returns errFull if there is none.
func (s *cidrSet) allocate() (netip.Prefix, error) {
	if s.free == 0 {
		return netip.Prefix{}, errFull
	}
	for k := 0; k < s.count; {
		i := (s.next + k) % s.count
		if i%64 == 0 && s.used[i/64] == ^uint64(0) && i+64 <= s.count {
			k += 64
			continue
		}
		if !s.has(i) {
			s.used[i/64] |= 1 << (i % 64)
			s.free--
			s.next = (i + 1) % s.count
			return s.part(i), nil
		}
		k++
	}
	return netip.Prefix{}, errFull
}

// usedCount returns the number of used parts. Tests compare it with free.
func (s *cidrSet) usedCount() (n int) {
	for _, w := range s.used {
		n += bits.OnesCount64(w)
	}
	return n
}
