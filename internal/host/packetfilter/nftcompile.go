package packetfilter

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// step is one rule of an nftables chain. It stands for one or more successive rules of a chain in this package: nftables
// decides with one lookup in a map of verdicts what iptables decides with one rule for each Service, pod or endpoint.
type step struct {
	// rule contains the matches of the step. In a map, the matches that differ between the rules, the comment and the
	// target are zero.
	rule Rule
	// key is the kind of the map. If it is zero, the step is the single rule in rule.
	key mapKey
	// entries are the entries of a map, in the order of the rules.
	entries []entry
	// repeated is true if the previous step stands for the same rule: nftables needs two rules for it.
	repeated bool
}

// entry is an entry of a map of verdicts.
type entry struct {
	// key is the packet's data that must match, as it is in the kernel's registers.
	key string
	// rule is the rule for which the entry stands.
	rule *Rule
}

// mapKey is the set of properties of a packet by which a map of verdicts is looked up, in the order of the constants.
type mapKey uint8

// keySource and the other constants are the properties of a packet in a mapKey.
const (
	keySource mapKey = 1 << iota
	keyDestination
	// keyPort consists of the protocol and the destination port.
	keyPort
	// keyOriginal consists of the protocol, and the destination address and port before address translation.
	keyOriginal
	// keyRandom is a random number. It is used alone.
	keyRandom
)

// compile returns the rules of a chain as steps of an nftables chain, in order. A packet has the same verdict as with
// the rules one after another.
func compile(rules []Rule) []step {
	var out []step
	for len(rules) > 0 {
		s, n := random(rules)
		if n < 2 {
			s, n = dispatch(rules)
		}
		if n < 2 {
			out, rules = append(out, single(rules[0])...), rules[1:]
			continue
		}
		out, rules = append(out, s), rules[n:]
	}
	return out
}

// single returns the steps of a rule that is not part of a map: one, or two for a rule that nftables needs two rules for.
func single(r Rule) []step {
	first, second := r, r
	switch {
	case r.Recent.Record:
		// The kernel continues with the next rule if the list is full.
		first.Target, second.Recent = "", Recent{}
	case r.Conn.States&Translated != 0 && r.Conn.States != Translated && !r.Conn.Not:
		first.Conn.States, second.Conn.States = r.Conn.States&^Translated, Translated
	case r.Conn.States&Translated != 0 && r.Conn.States&Invalid == 0 && r.Conn.Not:
		// A packet without connection is invalid. nftables does not compare its status.
		second.Conn = ConnState{States: Invalid}
	default:
		return []step{{rule: r}}
	}
	return []step{{rule: first}, {rule: second, repeated: true}}
}

// minRandom is the minimum number of targets between which a map of random numbers chooses. The kernel compares the name
// of each new map with those of all others, so that maps for each Service would take a time that is proportional to the
// square of their number.
const minRandom = 20

// random returns a map by a random number for the n first rules, if they choose one of n targets with equal
// probability. n is less than 2 if they do not.
func random(rules []Rule) (s step, n int) {
	n = rules[0].OneIn
	if n < minRandom || n > len(rules) {
		return step{}, 0
	}
	for i := range n {
		r := rules[i]
		left := max(r.OneIn, 1)
		r.OneIn = 0
		rest, ok := common(r)
		if left != n-i || !ok || i > 0 && rest != s.rule {
			return step{}, 0
		}
		s.rule = rest
		s.entries = append(s.entries, entry{key: string(binary.NativeEndian.AppendUint32(nil, uint32(i))), rule: &rules[i]})
	}
	s.key = keyRandom
	return s, n
}

// dispatch returns a map for the n first rules, if they have different values of the same matches and are otherwise
// equal, except for their comments and targets. A packet matches at most one of these rules. n is less than 2 if there
// are no such rules.
func dispatch(rules []Rule) (s step, n int) {
	s.key = keyOf(&rules[0])
	if s.key == 0 {
		return step{}, 0
	}
	var seen map[string]bool
	for i := range rules {
		r := &rules[i]
		if r.OneIn > 1 || keyOf(r) != s.key {
			break
		}
		rest, ok := common(s.key.without(*r))
		if !ok || i > 0 && rest != s.rule {
			break
		}
		s.rule = rest
		if i == 1 {
			seen = map[string]bool{s.entries[0].key: true}
		}
		key := s.key.of(r)
		if seen[key] {
			break
		}
		if seen != nil {
			seen[key] = true
		}
		s.entries = append(s.entries, entry{key: key, rule: r})
	}
	return s, len(s.entries)
}

// common returns r without its comment and its target. ok is false if a map of verdicts cannot contain the target, or a
// packet changes a state when it matches r.
func common(r Rule) (rest Rule, ok bool) {
	switch r.Target {
	case Masquerade, DNAT, MARK, ClampMSS:
		return r, false
	}
	if r.Recent.List != "" {
		return r, false
	}
	r.Comment, r.Target = "", ""
	return r, true
}

// keyOf returns the matches of r that can be looked up in a map: those that match exactly one value. It returns zero for
// rules with a program.
func keyOf(r *Rule) mapKey {
	var k mapKey
	if r.Program != nil {
		return 0
	}
	if r.Src.isOne() {
		k |= keySource
	}
	if r.Dst.isOne() {
		k |= keyDestination
	}
	if p := r.Ports; r.Protocol != "" && p.First != 0 && (p.Last == 0 || p.Last == p.First) && !r.SYN {
		k |= keyPort
	}
	if r.OrigDst.IsValid() && r.OrigDst.Port() != 0 && r.Protocol != "" && r.Ports == (Ports{}) && !r.SYN {
		k |= keyOriginal
	}
	return k
}

// isOne reports whether a matches exactly one address.
func (a Addresses) isOne() bool { return a.Range.IsValid() && a.Range.IsSingleIP() && !a.Not }

// without returns r without the matches that k contains.
func (k mapKey) without(r Rule) Rule {
	if k&keySource != 0 {
		r.Src = Addresses{}
	}
	if k&keyDestination != 0 {
		r.Dst = Addresses{}
	}
	if k&keyPort != 0 {
		r.Protocol, r.Ports = "", Ports{}
	}
	if k&keyOriginal != 0 {
		r.Protocol, r.OrigDst = "", netip.AddrPort{}
	}
	return r
}

// of returns the key of r in the notation of the kernel's registers: each part has a multiple of four bytes.
func (k mapKey) of(r *Rule) string {
	b := make([]byte, 0, 3*16)
	if k&keySource != 0 {
		b = append(b, r.Src.Range.Addr().AsSlice()...)
	}
	if k&keyDestination != 0 {
		b = append(b, r.Dst.Range.Addr().AsSlice()...)
	}
	if k&keyPort != 0 {
		b = append(b, protocolNumber(r.Protocol), 0, 0, 0)
		b = append(binary.BigEndian.AppendUint16(b, r.Ports.First), 0, 0)
	}
	if k&keyOriginal != 0 {
		b = append(b, protocolNumber(r.Protocol), 0, 0, 0)
		b = append(b, r.OrigDst.Addr().AsSlice()...)
		b = append(binary.BigEndian.AppendUint16(b, r.OrigDst.Port()), 0, 0)
	}
	return string(b)
}

// sameMaps reports whether two compiled chains differ at most in the entries of their maps by name. Maps of random numbers
// have no name and cannot be changed.
func sameMaps(a, b []step) bool {
	return slices.EqualFunc(a, b, func(a, b step) bool {
		return a.key == b.key && a.rule == b.rule && (a.key != keyRandom || slices.EqualFunc(a.entries, b.entries, func(a, b entry) bool {
			return a.rule.Target == b.rule.Target && a.rule.Comment == b.rule.Comment
		}))
	})
}
