package serviceip

import (
	"math/big"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// FuzzPorts decodes arbitrary bytes and compares the following operations with those on a map.
func FuzzPorts(f *testing.F) {
	f.Add([]byte{}, "30000-32767", []byte{1, 2, 3})
	f.Add([]byte{0xff, 0x01}, "30000-30015", []byte{0, 0, 9, 200})
	f.Add([]byte{1}, "1-65535", []byte{})
	f.Add([]byte{1}, "nonsense", []byte{})
	f.Fuzz(func(t *testing.T, data []byte, within string, steps []byte) {
		now := utilnet.PortRange{Base: 30000, Size: 256}
		p, err := parsePorts(&corev1.RangeAllocation{Range: within, Data: data}, now)
		if err != nil {
			return
		}
		model := map[int]bool{}
		for port := now.Base; port < now.Base+now.Size; port++ {
			model[port] = p.used(port)
		}
		for _, s := range steps {
			port := now.Base + int(s)
			switch err := p.take(port); {
			case model[port] && err == nil, !model[port] && err != nil:
				t.Fatalf("taking %d, used %v: %v", port, model[port], err)
			case model[port]:
				p.free(port)
				model[port] = false
			default:
				model[port] = true
			}
		}
		if port, err := p.choose(); err == nil {
			if model[port] || !now.Contains(port) {
				t.Fatalf("chose %d", port)
			}
			model[port] = true
		} else {
			for port, used := range model {
				if !used {
					t.Fatalf("%d is free: %v", port, err)
				}
			}
		}
		again, err := parsePorts(p.store(), now)
		if err != nil || !again.equal(p) {
			t.Fatalf("stored and read: %v", err)
		}
		for port, used := range model {
			if again.used(port) != used {
				t.Fatalf("%d is used: %v", port, !used)
			}
		}
	})
}

func TestPortsAreStoredAsUpstreamDoes(t *testing.T) {
	p := newPorts(utilnet.PortRange{Base: 30000, Size: 2768})
	for _, port := range []int{30000, 30009} {
		if err := p.take(port); err != nil {
			t.Fatal(err)
		}
	}
	stored := p.store()
	if want := []byte{0x02, 0x01}; !slices.Equal(stored.Data, want) || stored.Range != "30000-32767" {
		t.Errorf("stored %x %q, want %x", stored.Data, stored.Range, want)
	}
	moved, err := parsePorts(stored, utilnet.PortRange{Base: 30005, Size: 10})
	if err != nil {
		t.Fatal(err)
	}
	if want := big.NewInt(1 << 4); moved.bits.Cmp(want) != 0 {
		t.Errorf("in another range %b, want %b", moved.bits, want)
	}
}

func TestAllocationRanges(t *testing.T) {
	for _, test := range []struct {
		prefix      string
		size, lower uint64
		first, last string
	}{
		{"10.96.0.0/16", 65534, 256, "10.96.0.1", "10.96.255.254"},
		{"10.96.0.0/24", 254, 16, "10.96.0.1", "10.96.0.254"},
		{"10.96.0.0/28", 14, 14, "10.96.0.1", "10.96.0.14"},
		{"10.96.0.0/29", 6, 0, "10.96.0.1", "10.96.0.6"},
		{"10.96.0.0/32", 0, 0, "10.96.0.1", "10.96.0.0"},
		{"fd00::/120", 255, 16, "fd00::1", "fd00::ff"},
		{"fd00::/64", maxSize, 256, "fd00::1", "fd00::10:0"},
	} {
		b := newAllocationRange(netip.MustParsePrefix(test.prefix))
		if b.size != test.size || b.lower != test.lower {
			t.Errorf("%s: size %d, lower %d, want %d, %d", test.prefix, b.size, b.lower, test.size, test.lower)
		}
		if test.size > 0 {
			if first, last := b.at(0).String(), b.at(b.size-1).String(); first != test.first || last != test.last {
				t.Errorf("%s: %s to %s, want %s to %s", test.prefix, first, last, test.first, test.last)
			}
			if !b.usable(b.at(0)) || !b.usable(b.at(b.size-1)) {
				t.Errorf("%s: first or last address is not usable", test.prefix)
			}
		}
		// The lower part is used last.
		taken := map[netip.Addr]bool{}
		for i := range min(b.size, 1000) {
			addr, ok := b.choose(func(a netip.Addr) bool { return !taken[a] })
			if !ok || taken[addr] {
				t.Fatalf("%s: choice %d is %s", test.prefix, i, addr)
			}
			if upper := b.size - b.lower; i < upper && addr.Less(b.at(b.lower)) {
				t.Fatalf("%s: choice %d is %s of the lower part", test.prefix, i, addr)
			}
			taken[addr] = true
		}
	}
}
