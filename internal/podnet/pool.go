package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// pool gives addresses out. Each given one is a file, named by it, that holds
// the pod's id; it is made before the address is used, so that a crash may
// leave an address given but never gives it twice.
type pool struct {
	dir string

	mu    sync.Mutex
	given map[netip.Addr]string
	last  map[netip.Prefix]netip.Addr
}

func openPool(dir string) (*pool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of pod addresses: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the pod addresses: %w", err)
	}
	p := &pool{dir: dir, given: map[netip.Addr]string{}, last: map[netip.Prefix]netip.Addr{}}
	for _, entry := range entries {
		addr, err := netip.ParseAddr(entry.Name())
		if err != nil {
			continue
		}
		id, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading a pod address: %w", err)
		}
		p.given[addr] = string(id)
	}
	return p, nil
}

// errExhausted says that a CIDR has no free address.
var errExhausted = errors.New("no free address")

// take gives the pod an address of the CIDR: the next after the last given,
// so that one just freed is not seen again soon.
func (p *pool) take(cidr netip.Prefix, id string) (netip.Addr, error) {
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
		// The last one is IPv4's broadcast address; IPv6 has no need of it.
		if !cidr.Contains(addr) || addr == last {
			if wrapped {
				return netip.Addr{}, fmt.Errorf("pod CIDR %s: %w", cidr, errExhausted)
			}
			wrapped, addr = true, first
		}
		if _, taken := p.given[addr]; !taken && cidr.Contains(addr) && addr != last {
			break
		}
		if wrapped && addr == start {
			return netip.Addr{}, fmt.Errorf("pod CIDR %s: %w", cidr, errExhausted)
		}
	}
	file := filepath.Join(p.dir, addr.String())
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("recording a pod address: %w", err)
	}
	_, err = f.WriteString(id)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(file)
		return netip.Addr{}, fmt.Errorf("recording a pod address: %w", err)
	}
	p.given[addr] = id
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

// of returns the pod's addresses, in no order.
func (p *pool) of(id string) []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	var addrs []netip.Addr
	for addr, owner := range p.given {
		if owner == id {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// free takes back the addresses of every pod for which gone is true.
func (p *pool) free(gone func(id string) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, id := range p.given {
		if !gone(id) {
			continue
		}
		if err := os.Remove(filepath.Join(p.dir, addr.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("freeing a pod address: %w", err)
		}
		delete(p.given, addr)
	}
	return nil
}

func (p *pool) anyIn(cidr netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr := range p.given {
		if cidr.Contains(addr) {
			return true
		}
	}
	return false
}
