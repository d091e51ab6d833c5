package packetfilter

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// TextNFTables returns chains as they are in nftables, in the notation of `nft list table`, for transcripts of tests.
// Equal chains have equal texts.
func TextNFTables(family Family, chains Chains) string {
	protocol := "ip"
	if family == IPv6 {
		protocol = "ip6"
	}
	var maps, out strings.Builder
	for _, c := range sortedKeys(chains) {
		fmt.Fprintf(&out, "\tchain %s {\n", c.nftName())
		for i, s := range compile(chains[c]) {
			if s.key != 0 && s.key != keyRandom {
				maps.WriteString(s.mapText(c, family, i))
			}
			fmt.Fprintf(&out, "\t\t%s\n", s.text(c, protocol, i))
		}
		out.WriteString("\t}\n")
	}
	return "table " + protocol + " " + nftTable + " {\n" + maps.String() + out.String() + "}\n"
}

// mapText returns the definition of the map of the n-th step of the chain c.
func (s *step) mapText(c Chain, family Family, n int) string {
	types := strings.Join(s.key.parts([]string{"ipv4_addr", "inet_proto", "inet_service"}), " . ")
	if family == IPv6 {
		types = strings.ReplaceAll(types, "ipv4_addr", "ipv6_addr")
	}
	out := fmt.Sprintf("\tmap %s {\n\t\ttype %s : verdict\n\t\telements = {\n", c.mapName(n), types)
	for _, e := range s.entries {
		var words []string
		if s.key&keySource != 0 {
			words = append(words, e.rule.Src.Range.Addr().String())
		}
		if s.key&keyDestination != 0 {
			words = append(words, e.rule.Dst.Range.Addr().String())
		}
		if s.key&keyPort != 0 {
			words = append(words, e.rule.Protocol, strconv.Itoa(int(e.rule.Ports.First)))
		}
		if s.key&keyOriginal != 0 {
			words = append(words, e.rule.Protocol, e.rule.OrigDst.Addr().String(), strconv.Itoa(int(e.rule.OrigDst.Port())))
		}
		out += fmt.Sprintf("\t\t\t%s : %s,\n", strings.Join(words, " . "), verdictText(c.Table, e.rule.Target))
	}
	return out + "\t\t}\n\t}\n"
}

// parts returns the words for the properties in k: of an address, of the protocol and of a port.
func (k mapKey) parts(words []string) []string {
	var out []string
	if k&keySource != 0 {
		out = append(out, words[0])
	}
	if k&keyDestination != 0 {
		out = append(out, words[0])
	}
	if k&keyPort != 0 {
		out = append(out, words[1], words[2])
	}
	if k&keyOriginal != 0 {
		out = append(out, words[1], words[0], words[2])
	}
	return out
}

// verdictText returns the verdict of a target that a map can contain.
func verdictText(table Table, target string) string {
	switch target {
	case Accept, Drop, Return:
		return strings.ToLower(target)
	case Reject:
		target = rejectChain
	}
	return "jump " + Chain{table, target}.nftName()
}

// text returns the rule that executes the n-th step of the chain c. protocol is "ip" or "ip6".
func (s *step) text(c Chain, protocol string, n int) string {
	words := s.rule.nftMatches(protocol)
	switch s.key {
	case 0:
		if s.rule.Program != nil {
			words = append(words, s.rule.Program.text(protocol))
		}
		words = append(words, s.rule.nftTarget(c, protocol)...)
	case keyRandom:
		var choices []string
		for i, e := range s.entries {
			choices = append(choices, fmt.Sprintf("%d : %s", i, verdictText(c.Table, e.rule.Target)))
		}
		words = append(words, fmt.Sprintf("numgen random mod %d vmap { %s }", len(s.entries), strings.Join(choices, ", ")))
	default:
		words = append(words, s.key.lookup(protocol), "vmap @"+c.mapName(n))
	}
	if s.rule.Comment != "" {
		words = append(words, "comment", strconv.Quote(s.rule.Comment))
	}
	return strings.Join(words, " ")
}

// lookup returns the expression whose value is looked up in a map.
func (k mapKey) lookup(protocol string) string {
	var words []string
	if k&keySource != 0 {
		words = append(words, protocol+" saddr")
	}
	if k&keyDestination != 0 {
		words = append(words, protocol+" daddr")
	}
	if k&keyPort != 0 {
		words = append(words, "meta l4proto", "th dport")
	}
	if k&keyOriginal != 0 {
		words = append(words, "meta l4proto", "ct original "+protocol+" daddr", "ct original proto-dst")
	}
	return strings.Join(words, " . ")
}

// nftMatches returns the matches of r as words of nft.
func (r *Rule) nftMatches(protocol string) []string {
	var out []string
	add := func(condition bool, format string, args ...any) {
		if condition {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	not := func(not bool) string {
		if not {
			return "!= "
		}
		return ""
	}
	link := func(l Link) string { return not(l.Not) + strconv.Quote(strings.Replace(l.Name, "+", "*", 1)) }
	add(r.Src.isSome(), "%s saddr %s%s", protocol, not(r.Src.Not), rangeText(r.Src.Range))
	add(r.Dst.isSome(), "%s daddr %s%s", protocol, not(r.Dst.Not), rangeText(r.Dst.Range))
	add(r.In.Name != "", "iifname %s", link(r.In))
	add(r.Out.Name != "", "oifname %s", link(r.Out))
	add(r.SrcLocal, "fib saddr type local")
	add(r.DstLocal, "fib daddr type local")
	add(r.Protocol != "" && r.Ports.First == 0, "meta l4proto %s", r.Protocol)
	add(r.Ports.First != 0 && r.Ports.Last <= r.Ports.First, "%s dport %d", r.Protocol, r.Ports.First)
	add(r.Ports.First != 0 && r.Ports.Last > r.Ports.First, "%s dport %d-%d", r.Protocol, r.Ports.First, r.Ports.Last)
	add(r.SYN, "tcp flags & (syn | rst) == syn")
	states := strings.ToLower((r.Conn.States &^ Translated).names())
	add(states != "", "ct state %s%s", not(r.Conn.Not), states)
	add(r.Conn.States&Translated != 0, "ct status %sdnat", not(r.Conn.Not))
	add(r.OrigDst.IsValid(), "ct original %s daddr %s", protocol, r.OrigDst.Addr())
	add(r.OrigDst.IsValid() && r.OrigDst.Port() != 0, "ct original proto-dst %d", r.OrigDst.Port())
	add(r.Mark.Bits != 0, "meta mark & %#x %s %#x", r.Mark.Bits, map[bool]string{false: "==", true: "!="}[r.Mark.Not], r.Mark.Bits)
	add(r.OneIn > 1, "numgen random mod %d 0", r.OneIn)
	add(r.Recent.List != "" && r.Recent.Record, "update @%s%s { %s saddr timeout %ds }", recentPrefix, r.Recent.List, protocol, r.Recent.Within)
	add(r.Recent.List != "" && !r.Recent.Record, "%s saddr @%s%s", protocol, recentPrefix, r.Recent.List)
	return out
}

// isSome reports whether a excludes some addresses.
func (a Addresses) isSome() bool { return a.Range.IsValid() && (a.Range.Bits() > 0 || a.Not) }

// rangeText returns a range of addresses as nft prints it.
func rangeText(r netip.Prefix) string {
	if r.IsSingleIP() {
		return r.Addr().String()
	}
	return r.Masked().String()
}

// nftTarget returns the target of r as words of nft.
func (r *Rule) nftTarget(c Chain, protocol string) []string {
	switch {
	case r.Target == "":
		return nil
	case r.Target == Masquerade && r.RandomPorts:
		return []string{"masquerade fully-random"}
	case r.Target == Masquerade:
		return []string{"masquerade"}
	case r.Target == DNAT:
		return []string{"dnat to", r.To.String()}
	case r.Target == MARK && r.SetMark != 0:
		return []string{fmt.Sprintf("meta mark set meta mark | %#x", r.SetMark)}
	case r.Target == MARK:
		return []string{fmt.Sprintf("meta mark set meta mark ^ %#x", r.ToggleMark)}
	case r.Target == Reject && protocol == "ip":
		return []string{"reject"}
	case r.Target == Reject:
		return []string{"reject with icmpv6 port-unreachable"}
	case r.Target == ClampMSS:
		return []string{"tcp option maxseg size set rt mtu"}
	}
	return []string{verdictText(c.Table, r.Target)}
}
