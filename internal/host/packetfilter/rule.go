package packetfilter

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Rule is one rule of a chain: matches and a target. Zero fields match all packets. Rules are
// comparable with ==.
//
// Size: one field for each match, and for each parameter of a target.
type Rule struct {
	// Comment describes the rule to users. It consists of printable characters without quotes, at
	// most 255 bytes.
	Comment string
	// Src and Dst match the source and destination address.
	Src, Dst Addresses
	// In and Out match the link on which a packet arrives or leaves.
	In, Out Link
	// SrcLocal and DstLocal match packets from or to addresses of this host.
	SrcLocal, DstLocal bool
	// Recent matches or records recent sources of packets.
	Recent Recent
	// Protocol is "tcp", "udp" or "sctp". It is required by Ports and SYN.
	Protocol string
	// Ports match the destination port.
	Ports Ports
	// SYN matches the packets that open a TCP connection.
	SYN bool
	// Conn matches the conntrack state.
	Conn ConnState
	// OrigDst matches the destination address and port before address translation. A zero port
	// matches all ports.
	OrigDst netip.AddrPort
	// Mark matches a bit of the packet mark.
	Mark Mark
	// OneIn matches one of n packets at random, if it is at least 2.
	OneIn int
	// Program is evaluated after the other matches. Only nftables has programs. Two rules are equal only if they have the
	// same pointer.
	Program *Program
	// Target is what happens to matching packets: a chain or one of the targets below.
	Target string
	// To is the new destination, for DNAT.
	To netip.AddrPort
	// SetMark and ToggleMark are bits of the packet mark that are set or inverted, for MARK. Only
	// one of them may be set.
	SetMark, ToggleMark uint32
	// RandomPorts chooses random source ports, for MASQUERADE.
	RandomPorts bool
}

// Accept and the other constants are the targets of rules that are built into the kernel: what happens to a packet
// that matches.
const (
	Accept     = "ACCEPT"
	Drop       = "DROP"
	Reject     = "REJECT"
	Return     = "RETURN"
	Masquerade = "MASQUERADE"
	DNAT       = "DNAT"
	MARK       = "MARK"
	// ClampMSS limits the maximum segment size of TCP connections to the path MTU.
	ClampMSS = "TCPMSS"
)

// Addresses matches the addresses of a range, or with Not all others.
type Addresses struct {
	Range netip.Prefix
	Not   bool
}

// In matches the addresses of a range.
func In(r netip.Prefix) Addresses { return Addresses{Range: r} }

// NotIn matches addresses outside a range.
func NotIn(r netip.Prefix) Addresses { return Addresses{Range: r, Not: true} }

// Is matches one address.
func Is(a netip.Addr) Addresses { return In(netip.PrefixFrom(a, a.BitLen())) }

// Link matches the link with a name, or with Not all others. A name with the suffix "+" stands for
// all links with that prefix.
type Link struct {
	Name string
	Not  bool
}

// Ports matches ports from First to Last. If Last is zero, it matches First only.
type Ports struct{ First, Last uint16 }

// Recent is a match that keeps a list of recent source addresses.
type Recent struct {
	// List is the name of the list.
	List string
	// Within is the time in seconds for which a source is recent.
	Within int
	// Record matches all sources and records them. Otherwise, recent sources match.
	Record bool
}

// Mark matches packets whose mark has all Bits, or with Not those whose mark has not.
type Mark struct {
	Bits uint32
	Not  bool
}

// ConnStates is a set of states of a packet's connection in the kernel's connection tracking, such as Established.
type ConnStates uint8

// Invalid and the other constants are the states of a connection in the kernel's connection tracking, as bits of a
// set.
const (
	Invalid ConnStates = 1 << iota
	New
	Related
	Established
	// Translated is the state of connections whose destination was translated.
	Translated
)

// ConnState matches packets whose connection has one of the states, or with Not none of them.
type ConnState struct {
	States ConnStates
	Not    bool
}

// names returns the names of the states in s, as iptables prints them: joined with commas.
func (s ConnStates) names() string {
	var out []string
	for i, name := range []string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "DNAT"} {
		if s&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}

// String returns the rule in the notation of iptables-save, without "-A CHAIN". The order of the
// matches is fixed.
func (r Rule) String() string { return string(r.appendText(nil)) }

// appendText appends the text that String returns to b.
func (r *Rule) appendText(b []byte) []byte {
	add := func(words ...string) {
		for _, word := range words {
			b = append(append(b, word...), ' ')
		}
	}
	negate := func(not bool) {
		if not {
			add("!")
		}
	}
	if r.Comment != "" {
		add("-m comment --comment", strconv.Quote(r.Comment))
	}
	for _, a := range [...]struct {
		option string
		Addresses
	}{{"-s", r.Src}, {"-d", r.Dst}} {
		if a.Range.IsValid() {
			negate(a.Not)
			add(a.option)
			b = append(a.Range.AppendTo(b), ' ')
		}
	}
	for _, l := range [...]struct {
		option string
		Link
	}{{"-i", r.In}, {"-o", r.Out}} {
		if l.Name != "" {
			negate(l.Not)
			add(l.option, l.Name)
		}
	}
	if r.SrcLocal {
		add("-m addrtype --src-type LOCAL")
	}
	if r.DstLocal {
		add("-m addrtype --dst-type LOCAL")
	}
	if r.Recent.List != "" {
		add("-m recent --name", r.Recent.List)
		if r.Recent.Record {
			add("--set")
		} else {
			add("--rcheck --seconds", strconv.Itoa(r.Recent.Within), "--reap")
		}
	}
	if r.Protocol != "" {
		add("-p", r.Protocol)
		b = r.appendProtocol(b)
	}
	if r.Conn.States != 0 || r.OrigDst.IsValid() {
		add("-m conntrack")
		if r.Conn.States != 0 {
			negate(r.Conn.Not)
			add("--ctstate", r.Conn.States.names())
		}
		if r.OrigDst.IsValid() {
			add("--ctorigdst", r.OrigDst.Addr().String())
			if r.OrigDst.Port() != 0 {
				add("--ctorigdstport", strconv.Itoa(int(r.OrigDst.Port())))
			}
		}
	}
	if r.Mark.Bits != 0 {
		add("-m mark")
		negate(r.Mark.Not)
		b = fmt.Appendf(b, "--mark %#x/%#x ", r.Mark.Bits, r.Mark.Bits)
	}
	if r.OneIn > 1 {
		add("-m statistic --mode random --probability", strconv.FormatFloat(1/float64(r.OneIn), 'f', 10, 64))
	}
	return r.appendTarget(b)
}

// appendProtocol appends the matches of the protocol. A rule that translates an address also names
// the protocol if it matches all ports, because iptables-save prints it that way.
func (r *Rule) appendProtocol(b []byte) []byte {
	if r.Ports == (Ports{}) && !r.SYN && r.Target != DNAT {
		return b
	}
	b = append(append(append(b, "-m "...), r.Protocol...), ' ')
	switch {
	case r.Ports.First == 0:
	case r.Ports.Last == 0 || r.Ports.Last == r.Ports.First:
		b = fmt.Appendf(b, "--dport %d ", r.Ports.First)
	default:
		b = fmt.Appendf(b, "--dport %d:%d ", r.Ports.First, r.Ports.Last)
	}
	if r.SYN {
		b = append(b, "--tcp-flags SYN,RST SYN "...)
	}
	return b
}

func (r *Rule) appendTarget(b []byte) []byte {
	b = append(append(b, "-j "...), r.Target...)
	switch {
	case r.Target == DNAT:
		b = r.To.AppendTo(append(b, " --to-destination "...))
	case r.Target == MARK && r.SetMark != 0:
		b = fmt.Appendf(b, " --or-mark %#x", r.SetMark)
	case r.Target == MARK:
		b = fmt.Appendf(b, " --xor-mark %#x", r.ToggleMark)
	case r.Target == Masquerade && r.RandomPorts:
		b = append(b, " --random-fully"...)
	case r.Target == ClampMSS:
		b = append(b, " --clamp-mss-to-pmtu"...)
	}
	return b
}
