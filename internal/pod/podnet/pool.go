package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// pool allocates pod addresses. Each allocated address is stored as a file in dir that is named
// after the address and contains the pod ID. The file is created before the address is used: after
// a crash, an address can be allocated but unused, but never allocated twice.
type pool struct {
	dir string

	mu        sync.Mutex
	allocated map[netip.Addr]string
	last      map[netip.Prefix]netip.Addr
}

func openPool(dir string) (*pool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating pod addresses directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading pod addresses: %w", err)
	}
	p := &pool{dir: dir, allocated: map[netip.Addr]string{}, last: map[netip.Prefix]netip.Addr{}}
	for _, entry := range entries {
		addr, err := netip.ParseAddr(entry.Name())
		if err != nil {
			continue
		}
		id, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading pod address: %w", err)
		}
		p.allocated[addr] = string(id)
	}
	return p, nil
}

// errExhausted is wrapped by the error of allocate if all addresses of a CIDR are allocated.
var errExhausted = errors.New("no free address")

// allocate allocates an address of cidr for the pod id and stores it: the next free one after the
// last allocated address, so that freed addresses are not reused soon.
func (p *pool) allocate(cidr netip.Prefix, id string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := Gateway(cidr).Next()
	last := lastOf(cidr)
	start := p.last[cidr]
	if !start.IsValid() {
		start = Gateway(cidr)
	}
	addr := start.Next()
	for wrapped := false; ; addr = addr.Next() {
		// Skip the last address: it is the broadcast address in IPv4, and not needed in IPv6.
		if !cidr.Contains(addr) || addr == last {
			if wrapped {
				return netip.Addr{}, fmt.Errorf("pod CIDR %s: %w", cidr, errExhausted)
			}
			wrapped, addr = true, first
		}
		if _, taken := p.allocated[addr]; !taken && cidr.Contains(addr) && addr != last {
			break
		}
		if wrapped && addr == start {
			return netip.Addr{}, fmt.Errorf("pod CIDR %s: %w", cidr, errExhausted)
		}
	}
	file := filepath.Join(p.dir, addr.String())
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("recording pod address: %w", err)
	}
	_, err = f.WriteString(id)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(file)
		return netip.Addr{}, fmt.Errorf("recording pod address: %w", err)
	}
	p.allocated[addr] = id
	p.last[cidr] = addr
	return addr, nil
}

func lastOf(cidr netip.Prefix) netip.Addr {
	b := cidr.Masked().Addr().AsSlice()
	for bit := cidr.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// addresses returns the addresses that are allocated to the pod with the sandbox ID id, in no particular order.
func (p *pool) addresses(id string) []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	var addrs []netip.Addr
	for addr, owner := range p.allocated {
		if owner == id {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// free releases the addresses of every pod for which match returns true. It stops at the first error.
func (p *pool) free(match func(id string) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, id := range p.allocated {
		if !match(id) {
			continue
		}
		if err := os.Remove(filepath.Join(p.dir, addr.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("freeing pod address: %w", err)
		}
		delete(p.allocated, addr)
	}
	return nil
}

func (p *pool) anyIn(cidr netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr := range p.allocated {
		if cidr.Contains(addr) {
			return true
		}
	}
	return false
}
