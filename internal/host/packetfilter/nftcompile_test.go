package packetfilter

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// packet is a packet with the properties by which the rules of TestCompile match.
type packet struct {
	src, dst netip.Addr
	protocol string
	port     uint16
	original netip.AddrPort
}

// matches reports whether r matches p.
func (p packet) matches(r *Rule) bool {
	in := func(a Addresses, addr netip.Addr) bool { return !a.Range.IsValid() || a.Range.Contains(addr) != a.Not }
	first, last := r.Ports.First, max(r.Ports.First, r.Ports.Last)
	return in(r.Src, p.src) && in(r.Dst, p.dst) && (r.Protocol == "" || r.Protocol == p.protocol) &&
		(first == 0 || first <= p.port && p.port <= last) && (!r.OrigDst.IsValid() || r.OrigDst == p.original)
}

// targets returns the targets of the rules that match p, in order, for rules that do not end the evaluation.
func (p packet) targets(rules []Rule) []string {
	var out []string
	for i := range rules {
		if p.matches(&rules[i]) {
			out = append(out, rules[i].Target)
		}
	}
	return out
}

// compiled is like targets for a compiled chain.
func (p packet) compiled(steps []step) []string {
	var out []string
	for _, s := range steps {
		if !p.matches(&s.rule) {
			continue
		}
		if s.key == 0 {
			out = append(out, s.rule.Target)
			continue
		}
		key := s.key.of(&Rule{
			Src: Is(p.src), Dst: Is(p.dst), Protocol: p.protocol, Ports: Ports{First: p.port}, OrigDst: p.original,
		})
		for _, e := range s.entries {
			if e.key == key {
				out = append(out, e.rule.Target)
			}
		}
	}
	return out
}

// TestCompile compares compiled chains with the rules on random input.
func TestCompile(t *testing.T) {
	maps := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(4))}) }
		protocol := func() string { return []string{"tcp", "udp"}[rng.IntN(2)] }
		var rules []Rule
		for range rng.IntN(12) {
			r := Rule{Target: []string{"A", "B", "C", Reject}[rng.IntN(4)]}
			switch rng.IntN(4) {
			case 0:
				r.Src = Is(addr())
			case 1:
				r.Src = NotIn(netip.PrefixFrom(addr(), 31).Masked())
			}
			if rng.IntN(2) == 0 {
				r.Dst = Is(addr())
			}
			switch rng.IntN(4) {
			case 0:
				r.Protocol, r.Ports = protocol(), Ports{First: uint16(1 + rng.IntN(3))}
			case 1:
				r.Protocol, r.Ports = protocol(), Ports{First: 1, Last: 2}
			case 2:
				r.Protocol, r.OrigDst = protocol(), netip.AddrPortFrom(addr(), uint16(1+rng.IntN(2)))
			}
			rules = append(rules, r)
		}
		steps := compile(rules)
		for _, s := range steps {
			if s.key != 0 {
				maps++
			}
		}
		for range 50 {
			p := packet{addr(), addr(), protocol(), uint16(1 + rng.IntN(3)), netip.AddrPortFrom(addr(), uint16(1+rng.IntN(2)))}
			if got, want := p.compiled(steps), p.targets(rules); !slices.Equal(got, want) {
				t.Fatalf("seed %d, %+v: %v, want %v\n%s", seed, p, got, want, TextNFTables(IPv4, Chains{{NAT, "HK-A"}: rules}))
			}
		}
	}
	if maps == 0 {
		t.Error("there are no maps")
	}
}
