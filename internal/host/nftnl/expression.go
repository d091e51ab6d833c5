package nftnl

import (
	"golang.org/x/sys/unix"
)

// The methods below append expressions to the rule that Rule has begun. An expression loads a value into a register,
// compares it, or decides what happens to the packet. If a comparison fails, the kernel continues with the next rule.

// Register is the number of a register of 32 bits. A value that is longer uses the registers that follow.
type Register uint32

// Registers returns the n-th register.
func Registers(n int) Register { return Register(unix.NFT_REG32_00 + n) }

// verdictRegister is the register whose content decides what happens to the packet.
const verdictRegister Register = unix.NFT_REG_VERDICT

// Verdict is what happens to a packet. Jump and Goto also need a chain.
type Verdict int32

// Drop and the other constants are the verdicts of the kernel.
const (
	Drop   Verdict = 0
	Accept Verdict = 1
	Jump   Verdict = unix.NFT_JUMP
	Return Verdict = unix.NFT_RETURN
)

// Expressions begins the list of expressions of a rule. The caller passes the result to Close after the last one.
func (b *Batch) Expressions() (at int) { return b.Open(unix.NFTA_RULE_EXPRESSIONS) }

// expression begins an expression and returns what endExpression needs.
func (b *Batch) expression(name string) (at [2]int) {
	at[0] = b.Open(unix.NFTA_LIST_ELEM)
	b.String(unix.NFTA_EXPR_NAME, name)
	at[1] = b.Open(unix.NFTA_EXPR_DATA)
	return at
}

func (b *Batch) endExpression(at [2]int) {
	b.Close(at[1])
	b.Close(at[0])
}

func (b *Batch) register(attribute uint16, r Register) { b.Uint32(attribute, uint32(r)) }

// value appends an attribute that contains the bytes of a value.
func (b *Batch) value(attribute uint16, data []byte) {
	at := b.Open(attribute)
	b.Bytes(unix.NFTA_DATA_VALUE, data)
	b.Close(at)
}

// verdict appends an attribute that contains a verdict.
func (b *Batch) verdict(attribute uint16, v Verdict, chain string) {
	at := b.Open(attribute)
	inner := b.Open(unix.NFTA_DATA_VERDICT)
	b.Uint32(unix.NFTA_VERDICT_CODE, uint32(v))
	if chain != "" {
		b.String(unix.NFTA_VERDICT_CHAIN, chain)
	}
	b.Close(inner)
	b.Close(at)
}

// Meta loads a property of the packet, such as NFT_META_MARK.
func (b *Batch) Meta(key uint32, to Register) {
	at := b.expression("meta")
	b.register(unix.NFTA_META_DREG, to)
	b.Uint32(unix.NFTA_META_KEY, key)
	b.endExpression(at)
}

// SetMeta sets a property of the packet.
func (b *Batch) SetMeta(key uint32, from Register) {
	at := b.expression("meta")
	b.Uint32(unix.NFTA_META_KEY, key)
	b.register(unix.NFTA_META_SREG, from)
	b.endExpression(at)
}

// Payload loads length bytes at an offset of a header, such as NFT_PAYLOAD_NETWORK_HEADER.
func (b *Batch) Payload(header, offset, length uint32, to Register) {
	at := b.expression("payload")
	b.register(unix.NFTA_PAYLOAD_DREG, to)
	b.Uint32(unix.NFTA_PAYLOAD_BASE, header)
	b.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
	b.Uint32(unix.NFTA_PAYLOAD_LEN, length)
	b.endExpression(at)
}

// Conntrack loads a property of the connection, such as NFT_CT_STATE.
func (b *Batch) Conntrack(key uint32, to Register) {
	at := b.expression("ct")
	b.register(unix.NFTA_CT_DREG, to)
	b.Uint32(unix.NFTA_CT_KEY, key)
	b.endExpression(at)
}

// OriginalConntrack loads a property of the packets in the direction in which the connection was opened, before address
// translation.
func (b *Batch) OriginalConntrack(key uint32, to Register) {
	const original = 0 // IP_CT_DIR_ORIGINAL
	at := b.expression("ct")
	b.register(unix.NFTA_CT_DREG, to)
	b.Uint32(unix.NFTA_CT_KEY, key)
	b.Byte(unix.NFTA_CT_DIRECTION, original)
	b.endExpression(at)
}

// AddressType loads the type of an address of the packet, such as RTN_LOCAL. flags is NFTA_FIB_F_SADDR or
// NFTA_FIB_F_DADDR.
func (b *Batch) AddressType(flags uint32, to Register) {
	at := b.expression("fib")
	b.register(unix.NFTA_FIB_DREG, to)
	b.Uint32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
	b.Uint32(unix.NFTA_FIB_FLAGS, flags)
	b.endExpression(at)
}

// Random loads a random number below modulus.
func (b *Batch) Random(modulus uint32, to Register) {
	at := b.expression("numgen")
	b.register(unix.NFTA_NG_DREG, to)
	b.Uint32(unix.NFTA_NG_MODULUS, modulus)
	b.Uint32(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
	b.endExpression(at)
}

// Set loads a constant.
func (b *Batch) Set(to Register, data []byte) {
	at := b.expression("immediate")
	b.register(unix.NFTA_IMMEDIATE_DREG, to)
	b.value(unix.NFTA_IMMEDIATE_DATA, data)
	b.endExpression(at)
}

// Mask replaces a value with (value AND mask) XOR toggle.
func (b *Batch) Mask(register Register, mask, toggle []byte) {
	at := b.expression("bitwise")
	b.register(unix.NFTA_BITWISE_SREG, register)
	b.register(unix.NFTA_BITWISE_DREG, register)
	b.Uint32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
	b.value(unix.NFTA_BITWISE_MASK, mask)
	b.value(unix.NFTA_BITWISE_XOR, toggle)
	b.endExpression(at)
}

// Compare compares a value with data. operator is one of NFT_CMP_EQ, NFT_CMP_NEQ and so on.
func (b *Batch) Compare(register Register, operator uint32, data []byte) {
	at := b.expression("cmp")
	b.register(unix.NFTA_CMP_SREG, register)
	b.Uint32(unix.NFTA_CMP_OP, operator)
	b.value(unix.NFTA_CMP_DATA, data)
	b.endExpression(at)
}

// InSet continues only if a set contains the value.
func (b *Batch) InSet(set string, register Register) {
	at := b.expression("lookup")
	b.String(unix.NFTA_LOOKUP_SET, set)
	b.register(unix.NFTA_LOOKUP_SREG, register)
	b.endExpression(at)
}

// VerdictOf uses the verdict that a map contains for the value. id identifies a map without a lasting name that the
// same batch creates; it is zero for others.
func (b *Batch) VerdictOf(set string, id uint32, register Register) {
	at := b.expression("lookup")
	b.String(unix.NFTA_LOOKUP_SET, set)
	b.register(unix.NFTA_LOOKUP_SREG, register)
	b.register(unix.NFTA_LOOKUP_DREG, verdictRegister)
	if id != 0 {
		b.Uint32(unix.NFTA_LOOKUP_SET_ID, id)
	}
	b.endExpression(at)
}

// AddToSet adds the value to a set until timeout milliseconds have passed. If the set contains it, the time starts
// again. If the set is full, the kernel continues with the next rule.
func (b *Batch) AddToSet(set string, register Register, timeout uint64) {
	at := b.expression("dynset")
	b.String(unix.NFTA_DYNSET_SET_NAME, set)
	b.Uint32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
	b.register(unix.NFTA_DYNSET_SREG_KEY, register)
	b.Uint64(unix.NFTA_DYNSET_TIMEOUT, timeout)
	b.endExpression(at)
}

// Decide sets the verdict.
func (b *Batch) Decide(v Verdict, chain string) {
	at := b.expression("immediate")
	b.register(unix.NFTA_IMMEDIATE_DREG, verdictRegister)
	b.verdict(unix.NFTA_IMMEDIATE_DATA, v, chain)
	b.endExpression(at)
}

// Masquerade translates the source address of the packet to that of the link on which it leaves. flags are those of
// NAT, such as NF_NAT_RANGE_PROTO_RANDOM_FULLY.
func (b *Batch) Masquerade(flags uint32) {
	at := b.expression("masq")
	if flags != 0 {
		b.Uint32(unix.NFTA_MASQ_FLAGS, flags)
	}
	b.endExpression(at)
}

// TranslateDestination replaces the destination address and port of a connection with those in two registers. family is
// NFPROTO_IPV4 or NFPROTO_IPV6.
func (b *Batch) TranslateDestination(family byte, address, port Register) {
	at := b.expression("nat")
	b.Uint32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
	b.Uint32(unix.NFTA_NAT_FAMILY, uint32(family))
	b.register(unix.NFTA_NAT_REG_ADDR_MIN, address)
	b.register(unix.NFTA_NAT_REG_PROTO_MIN, port)
	b.endExpression(at)
}

// Reject drops the packet and replies with an ICMP message, whose type is "destination unreachable" and which has a code
// of the packet's family.
func (b *Batch) Reject(code byte) {
	at := b.expression("reject")
	b.Uint32(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH)
	b.Byte(unix.NFTA_REJECT_ICMP_CODE, code)
	b.endExpression(at)
}

// ClampMSS limits the maximum segment size in the options of a TCP packet to the path MTU.
func (b *Batch) ClampMSS(register Register) {
	at := b.expression("rt")
	b.register(unix.NFTA_RT_DREG, register)
	b.Uint32(unix.NFTA_RT_KEY, unix.NFT_RT_TCPMSS)
	b.endExpression(at)

	at = b.expression("byteorder")
	b.register(unix.NFTA_BYTEORDER_SREG, register)
	b.register(unix.NFTA_BYTEORDER_DREG, register)
	b.Uint32(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON)
	b.Uint32(unix.NFTA_BYTEORDER_LEN, 2)
	b.Uint32(unix.NFTA_BYTEORDER_SIZE, 2)
	b.endExpression(at)

	const mss, offset, length = 2, 2, 2 // of the TCP option
	at = b.expression("exthdr")
	b.register(unix.NFTA_EXTHDR_SREG, register)
	b.Byte(unix.NFTA_EXTHDR_TYPE, mss)
	b.Uint32(unix.NFTA_EXTHDR_OFFSET, offset)
	b.Uint32(unix.NFTA_EXTHDR_LEN, length)
	b.Uint32(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT)
	b.endExpression(at)
}

// LookUp loads the value that a map contains for a key, whose first register is key. It continues only if the map contains
// the key.
func (b *Batch) LookUp(set string, key, to Register) {
	at := b.expression("lookup")
	b.String(unix.NFTA_LOOKUP_SET, set)
	b.register(unix.NFTA_LOOKUP_SREG, key)
	b.register(unix.NFTA_LOOKUP_DREG, to)
	b.endExpression(at)
}

// NotInSet continues only if a set does not contain the value.
func (b *Batch) NotInSet(set string, register Register) {
	at := b.expression("lookup")
	b.String(unix.NFTA_LOOKUP_SET, set)
	b.register(unix.NFTA_LOOKUP_SREG, register)
	b.Uint32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
	b.endExpression(at)
}

// AddToMap adds a key with a value to a map until timeout milliseconds have passed. If the map contains the key, the value
// is kept and the time starts again. If the map is full, the kernel continues with the next rule.
func (b *Batch) AddToMap(set string, key, value Register, timeout uint64) {
	at := b.expression("dynset")
	b.String(unix.NFTA_DYNSET_SET_NAME, set)
	b.Uint32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
	b.register(unix.NFTA_DYNSET_SREG_KEY, key)
	b.register(unix.NFTA_DYNSET_SREG_DATA, value)
	b.Uint64(unix.NFTA_DYNSET_TIMEOUT, timeout)
	b.endExpression(at)
}

// RemoveFromMap removes a key from a map, if the map contains it.
func (b *Batch) RemoveFromMap(set string, key, value Register) {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	at := b.expression("dynset")
	b.String(unix.NFTA_DYNSET_SET_NAME, set)
	b.Uint32(unix.NFTA_DYNSET_OP, remove)
	b.register(unix.NFTA_DYNSET_SREG_KEY, key)
	b.register(unix.NFTA_DYNSET_SREG_DATA, value)
	b.endExpression(at)
}
