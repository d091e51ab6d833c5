package packetfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/nftnl"
)

// nftTable is the name of the table that contains all chains of hyperkube in nftables, in the families ip and ip6. A
// table of nftables contains chains of all kinds, so the name of a chain begins with its Table.
const nftTable = "hyperkube"

// nftFamily returns the number of a family in nf_tables.
func nftFamily(family Family) byte {
	if family == IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// nftName returns the name of the chain in nftables.
func (c Chain) nftName() string { return string(c.Table) + "-" + c.Name }

// mapName returns the name of the map of the n-th step of the chain.
func (c Chain) mapName(n int) string { return fmt.Sprintf("%s-%d", c.nftName(), n) }

// chainOfNFT returns the chain with a name in nftables. ok is false for helper chains.
func chainOfNFT(name string) (c Chain, ok bool) {
	table, rest, _ := strings.Cut(name, "-")
	return Chain{Table(table), rest}, rest != rejectChain
}

// rejectChain is the name, after that of the table, of the chain that rejects all packets. A map cannot contain the
// verdict to reject a packet, so it contains a jump to this chain.
const rejectChain = "reject"

// recentPrefix is the prefix of the names of sets that contain recent sources. The name of the list follows.
const recentPrefix = "recent-"

// Numbers of the types in the sets of nftables, with which the program nft prints elements.
const (
	typeInteger  = 4
	typeIPv4     = 7
	typeIPv6     = 8
	typeProtocol = 12
	typeService  = 13
	typeBits     = 6 // size of the number of a type in that of a concatenation
)

// encoder appends the changes of chains and sets in one family to a batch.
//
// Size: one method for each kind of object, match and target.
type encoder struct {
	nftnl.Batch
	family Family
	// sets is the number of sets that were created, which identify them in the batch.
	sets uint32
}

// begin begins a change of an object of the table. name is the attribute that contains the name of the table; it is 1
// for all objects.
func (e *encoder) begin(change int, flags uint16) {
	const table = 1
	e.Begin(change, nftFamily(e.family), flags)
	e.String(table, nftTable)
}

// ensureTable creates the table unless it exists.
func (e *encoder) ensureTable() { e.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE) }

// ensureChain creates a chain unless it exists. Built-in chains are attached to the hook of the kernel with their name.
func (e *encoder) ensureChain(c Chain) {
	e.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	e.String(unix.NFTA_CHAIN_NAME, c.nftName())
	if !builtIn(c.Name) {
		return
	}
	h := hookOf(c)
	at := e.Open(unix.NFTA_CHAIN_HOOK)
	e.Uint32(unix.NFTA_HOOK_HOOKNUM, h.number)
	e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
	e.Close(at)
	e.String(unix.NFTA_CHAIN_TYPE, h.kind)
}

// hook is where the kernel evaluates a built-in chain.
type hook struct {
	number   uint32
	priority int32
	kind     string
}

// hookOf returns the hook of a built-in chain. The priorities are those of iptables, but packets pass the chains of
// hyperkube first: the first chain that translates the address of a connection wins.
func hookOf(c Chain) hook {
	numbers := map[string]uint32{
		"PREROUTING": unix.NF_INET_PRE_ROUTING, "INPUT": unix.NF_INET_LOCAL_IN, "FORWARD": unix.NF_INET_FORWARD,
		"OUTPUT": unix.NF_INET_LOCAL_OUT, "POSTROUTING": unix.NF_INET_POST_ROUTING,
	}
	h := hook{number: numbers[c.Name], kind: "filter"}
	switch {
	case c.Table == Mangle:
		h.priority = -150
	case c.Table == NAT && (c.Name == "PREROUTING" || c.Name == "OUTPUT"):
		h.kind, h.priority = "nat", -100
	case c.Table == NAT:
		h.kind, h.priority = "nat", 100
	}
	h.priority--
	return h
}

// flush removes all rules of a chain, which must exist.
func (e *encoder) flush(c Chain) {
	e.begin(unix.NFT_MSG_DELRULE, 0)
	e.String(unix.NFTA_RULE_CHAIN, c.nftName())
}

// removeChain removes a chain without rules to which no rule jumps.
func (e *encoder) removeChain(name string) {
	e.begin(unix.NFT_MSG_DELCHAIN, 0)
	e.String(unix.NFTA_CHAIN_NAME, name)
}

// removeSet removes a set or map that no rule uses.
func (e *encoder) removeSet(name string) {
	e.begin(unix.NFT_MSG_DELSET, 0)
	e.String(unix.NFTA_SET_NAME, name)
}

// removeRule removes the rule of a chain with a handle.
func (e *encoder) removeRule(c Chain, handle uint64) {
	e.begin(unix.NFT_MSG_DELRULE, 0)
	e.String(unix.NFTA_RULE_CHAIN, c.nftName())
	e.Uint64(unix.NFTA_RULE_HANDLE, handle)
}

// ensureSet creates a set unless it exists. It returns the ID by which rules and elements of the same batch refer to it.
func (e *encoder) ensureSet(name string, flags, keyType, keyLength uint32) (id uint32) {
	e.sets++
	e.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	e.String(unix.NFTA_SET_NAME, name)
	e.Uint32(unix.NFTA_SET_FLAGS, flags)
	e.Uint32(unix.NFTA_SET_KEY_TYPE, keyType)
	e.Uint32(unix.NFTA_SET_KEY_LEN, keyLength)
	if flags&unix.NFT_SET_MAP != 0 {
		e.Uint32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	}
	if flags&unix.NFT_SET_EVAL != 0 {
		at := e.Open(unix.NFTA_SET_DESC)
		e.Uint32(unix.NFTA_SET_DESC_SIZE, maxRecent)
		e.Close(at)
	}
	if keyType == typeInteger {
		e.Bytes(unix.NFTA_SET_USERDATA, hostOrderKeys())
	}
	e.Uint32(unix.NFTA_SET_ID, e.sets)
	return e.sets
}

// maxRecent is the maximum number of recent sources in a list.
const maxRecent = 1 << 16

// ensureReject creates the chain of a table that rejects all packets.
func (e *encoder) ensureReject(table Table) {
	c := Chain{table, rejectChain}
	e.ensureChain(c)
	e.flush(c)
	e.steps(c, []step{{rule: Rule{Target: Reject}}})
}

// steps appends the rules of a chain, after creating the sets and maps that they use. Its maps must not exist.
func (e *encoder) steps(c Chain, steps []step) {
	for i := range steps {
		s := &steps[i]
		for j := range s.entries {
			if s.entries[j].rule.Target == Reject {
				e.ensureReject(c.Table)
				break
			}
		}
		name, id := c.mapName(i), uint32(0)
		switch {
		case s.key == keyRandom:
			name = "__map%d" // the kernel chooses the number
			id = e.ensureSet(name, unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT|unix.NFT_SET_MAP, typeInteger, 4)
		case s.key != 0:
			e.ensureSet(name, unix.NFT_SET_MAP, s.key.nftType(e.family), uint32(len(s.entries[0].key)))
		case s.rule.Recent.List != "":
			e.ensureRecent(s.rule.Recent.List)
		}
		e.elements(unix.NFT_MSG_NEWSETELEM, c, name, id, s.entries)
		e.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		e.String(unix.NFTA_RULE_CHAIN, c.nftName())
		e.body(c, s, name, id)
	}
}

// ensureRecent creates the set of a list of recent sources unless it exists.
func (e *encoder) ensureRecent(list string) {
	kind, length := uint32(typeIPv4), uint32(4)
	if e.family == IPv6 {
		kind, length = typeIPv6, 16
	}
	e.ensureSet(recentPrefix+list, unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT, kind, length)
}

// elements adds or removes entries of a map of the chain c.
func (e *encoder) elements(change int, c Chain, name string, id uint32, entries []entry) {
	elements := make([]nftnl.Element, len(entries))
	for i := range entries {
		verdict, chain := verdictOf(c.Table, entries[i].rule.Target)
		elements[i] = nftnl.Element{Key: []byte(entries[i].key), HasVerdict: true, Verdict: verdict, Chain: chain}
	}
	e.Elements(change, nftFamily(e.family), nftTable, name, id, elements)
}

// verdictOf returns the verdict of a target that a map can contain, and the chain to which it jumps.
func verdictOf(table Table, target string) (nftnl.Verdict, string) {
	switch target {
	case Accept:
		return nftnl.Accept, ""
	case Drop:
		return nftnl.Drop, ""
	case Return:
		return nftnl.Return, ""
	case Reject:
		target = rejectChain
	}
	return nftnl.Jump, Chain{table, target}.nftName()
}

// nftType returns the type of the keys of a map.
func (k mapKey) nftType(family Family) uint32 {
	address := uint32(typeIPv4)
	if family == IPv6 {
		address = typeIPv6
	}
	var kind uint32
	for _, part := range []struct {
		key   mapKey
		types []uint32
	}{
		{keySource, []uint32{address}}, {keyDestination, []uint32{address}}, {keyPort, []uint32{typeProtocol, typeService}},
		{keyOriginal, []uint32{typeProtocol, address, typeService}},
	} {
		for _, t := range part.types {
			if k&part.key != 0 {
				kind = kind<<typeBits | t
			}
		}
	}
	return kind
}

// body appends the expressions and the comment of a rule of the chain c that executes a step. name and id identify the
// step's map.
func (e *encoder) body(c Chain, s *step, name string, id uint32) {
	at := e.Expressions()
	e.matches(&s.rule)
	switch s.key {
	case 0:
		if s.rule.Program != nil {
			e.program(s.rule.Program)
		}
		e.target(c, &s.rule)
	case keyRandom:
		e.Random(uint32(len(s.entries)), scratch)
		e.VerdictOf(name, id, scratch)
	default:
		e.load(s.key)
		e.VerdictOf(name, 0, scratch)
	}
	e.Close(at)
	e.Bytes(unix.NFTA_RULE_USERDATA, userData(c, s))
}

// scratch is the first register of the values that a rule compares.
var scratch = nftnl.Registers(0)

// load loads the properties by which a map is looked up into registers.
func (e *encoder) load(k mapKey) {
	next := 0
	words := 1
	if e.family == IPv6 {
		words = 4
	}
	take := func(n int) nftnl.Register {
		next += n
		return nftnl.Registers(next - n)
	}
	if k&keySource != 0 {
		e.address(false, take(words))
	}
	if k&keyDestination != 0 {
		e.address(true, take(words))
	}
	if k&keyPort != 0 {
		e.Meta(unix.NFT_META_L4PROTO, take(1))
		e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, destinationPort, 2, take(1))
	}
	if k&keyOriginal != 0 {
		e.Meta(unix.NFT_META_L4PROTO, take(1))
		e.OriginalConntrack(e.originalAddress(), take(words))
		e.OriginalConntrack(unix.NFT_CT_PROTO_DST, take(1))
	}
}

// destinationPort and tcpFlags are offsets in the header of TCP; the first is the same in UDP and SCTP.
const (
	destinationPort = 2
	tcpFlags        = 13
)

// originalAddress returns the property of a connection that contains its original destination address.
func (e *encoder) originalAddress() uint32 {
	if e.family == IPv6 {
		return unix.NFT_CT_DST_IP6
	}
	return unix.NFT_CT_DST_IP
}

// address loads the source address of the packet, or with destination its destination address.
func (e *encoder) address(destination bool, to nftnl.Register) {
	offset, length := uint32(12), uint32(4)
	if e.family == IPv6 {
		offset, length = 8, 16
	}
	if destination {
		offset += length
	}
	e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, length, to)
}

// matches appends the expressions that compare the packet with the matches of r.
func (e *encoder) matches(r *Rule) {
	e.addresses(r.Src, false)
	e.addresses(r.Dst, true)
	e.link(r.In, unix.NFT_META_IIFNAME)
	e.link(r.Out, unix.NFT_META_OIFNAME)
	if r.SrcLocal {
		e.AddressType(unix.NFTA_FIB_F_SADDR, scratch)
		e.Compare(scratch, unix.NFT_CMP_EQ, native(unix.RTN_LOCAL))
	}
	if r.DstLocal {
		e.AddressType(unix.NFTA_FIB_F_DADDR, scratch)
		e.Compare(scratch, unix.NFT_CMP_EQ, native(unix.RTN_LOCAL))
	}
	e.protocol(r)
	e.connection(r)
	if r.Mark.Bits != 0 {
		e.Meta(unix.NFT_META_MARK, scratch)
		e.bits(r.Mark.Bits, operator(r.Mark.Not), native(r.Mark.Bits))
	}
	if r.OneIn > 1 {
		e.Random(uint32(r.OneIn), scratch)
		e.Compare(scratch, unix.NFT_CMP_EQ, native(0))
	}
	if r.Recent.List != "" {
		e.address(false, scratch)
		if r.Recent.Record {
			e.AddToSet(recentPrefix+r.Recent.List, scratch, uint64(r.Recent.Within)*1000)
		} else {
			e.InSet(recentPrefix+r.Recent.List, scratch)
		}
	}
}

// bits compares some bits of the value in the scratch register.
func (e *encoder) bits(mask, operator uint32, with []byte) {
	e.Mask(scratch, native(mask), native(0))
	e.Compare(scratch, operator, with)
}

// native returns n in the byte order of the machine, which registers with numbers have.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// operator returns the comparison for equality, or with not for inequality.
func operator(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

func (e *encoder) addresses(a Addresses, destination bool) {
	if !a.Range.IsValid() || a.Range.Bits() == 0 && !a.Not {
		return
	}
	e.address(destination, scratch)
	if !a.Range.IsSingleIP() {
		mask := netmask(a.Range)
		e.Mask(scratch, mask, make([]byte, len(mask)))
	}
	e.Compare(scratch, operator(a.Not), a.Range.Masked().Addr().AsSlice())
}

// netmask returns the mask of a range.
func netmask(r netip.Prefix) []byte { return maskOf(r.Bits(), r.Addr().BitLen()/8) }

// maskOf returns a mask of a size in bytes, whose first bits are one.
func maskOf(bits, size int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

func (e *encoder) link(l Link, property uint32) {
	if l.Name == "" {
		return
	}
	name, isPrefix := strings.CutSuffix(l.Name, "+")
	data := []byte(name)
	if !isPrefix {
		data = make([]byte, unix.IFNAMSIZ)
		copy(data, name)
	}
	e.Meta(property, scratch)
	e.Compare(scratch, operator(l.Not), data)
}

// protocolNumber returns the number of a protocol.
func protocolNumber(name string) byte {
	return map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[name]
}

func (e *encoder) protocol(r *Rule) {
	if r.Protocol != "" {
		e.Meta(unix.NFT_META_L4PROTO, scratch)
		e.Compare(scratch, unix.NFT_CMP_EQ, []byte{protocolNumber(r.Protocol)})
	}
	if r.Ports.First != 0 {
		e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, destinationPort, 2, scratch)
		if last := max(r.Ports.First, r.Ports.Last); last == r.Ports.First {
			e.Compare(scratch, unix.NFT_CMP_EQ, bigEndian(last))
		} else {
			e.Compare(scratch, unix.NFT_CMP_GTE, bigEndian(r.Ports.First))
			e.Compare(scratch, unix.NFT_CMP_LTE, bigEndian(last))
		}
	}
	if r.SYN {
		const syn, rst = 0x02, 0x04
		e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, tcpFlags, 1, scratch)
		e.Mask(scratch, []byte{syn | rst}, []byte{0})
		e.Compare(scratch, unix.NFT_CMP_EQ, []byte{syn})
	}
}

// bigEndian returns a port in network byte order.
func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// Bits of the state and the status of a connection in the kernel.
const (
	stateInvalid     = 1 << 0
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
	statusTranslated = 1 << 5 // IPS_DST_NAT
)

func (e *encoder) connection(r *Rule) {
	var state uint32
	for i, bit := range []uint32{stateInvalid, stateNew, stateRelated, stateEstablished} {
		if r.Conn.States&(1<<i) != 0 {
			state |= bit
		}
	}
	if state != 0 {
		e.Conntrack(unix.NFT_CT_STATE, scratch)
		e.bits(state, operator(!r.Conn.Not), native(0))
	}
	if r.Conn.States&Translated != 0 {
		e.Conntrack(unix.NFT_CT_STATUS, scratch)
		e.bits(statusTranslated, operator(!r.Conn.Not), native(0))
	}
	if r.OrigDst.IsValid() {
		e.OriginalConntrack(e.originalAddress(), scratch)
		e.Compare(scratch, unix.NFT_CMP_EQ, r.OrigDst.Addr().AsSlice())
		if port := r.OrigDst.Port(); port != 0 {
			e.OriginalConntrack(unix.NFT_CT_PROTO_DST, scratch)
			e.Compare(scratch, unix.NFT_CMP_EQ, bigEndian(port))
		}
	}
}

// target appends the expressions of the target of r. Without a target, the kernel continues with the next rule.
func (e *encoder) target(c Chain, r *Rule) {
	switch r.Target {
	case "":
	case Masquerade:
		var flags uint32
		if r.RandomPorts {
			flags = unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
		}
		e.Masquerade(flags)
	case DNAT:
		address, port := nftnl.Registers(0), nftnl.Registers(4)
		e.Set(address, r.To.Addr().AsSlice())
		e.Set(port, bigEndian(r.To.Port()))
		e.TranslateDestination(nftFamily(e.family), address, port)
	case MARK:
		e.Meta(unix.NFT_META_MARK, scratch)
		e.Mask(scratch, native(^r.SetMark), native(r.SetMark|r.ToggleMark))
		e.SetMeta(unix.NFT_META_MARK, scratch)
	case Reject:
		const port4, port6 = 3, 4 // ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH
		if e.family == IPv6 {
			e.Reject(port6)
		} else {
			e.Reject(port4)
		}
	case ClampMSS:
		e.ClampMSS(scratch)
	default:
		e.Decide(verdictOf(c.Table, r.Target))
	}
}

// Types of the parts of a rule's user data. The program nft prints the comment and ignores the other types.
const (
	dataComment = 0
	// dataCount is the number of rules for which a rule in nftables stands.
	dataCount = 0xf0
	// dataText is the text of a jump.
	dataText = 0xf1
)

// userData returns the data that describes a step to programs that read the rules.
func userData(c Chain, s *step) []byte {
	var b []byte
	add := func(kind byte, data string) { b = appendUserData(b, kind, data) }
	switch {
	case s.repeated:
		add(dataCount, "0")
	case s.key == keyRandom:
		add(dataCount, fmt.Sprint(len(s.entries)))
	case s.key != 0:
		add(dataCount, countOfMap)
	case builtIn(c.Name):
		add(dataText, s.rule.String())
	}
	if s.rule.Comment != "" {
		add(dataComment, s.rule.Comment)
	}
	return b
}

// appendUserData appends a part of user data, shortened to the limit of the kernel.
func appendUserData(b []byte, kind byte, data string) []byte {
	const header, terminator = 2, 1
	room := unix.NFT_USERDATA_MAXLEN - len(b) - header - terminator
	if room <= 0 {
		return b
	}
	data = data[:min(len(data), room)]
	b = append(append(b, kind, byte(len(data)+1)), data...)
	return append(b, 0)
}

// countOfMap means that a rule in nftables stands for as many rules as its map has elements.
const countOfMap = "map"
