package packetfilter

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/nftnl"
)

// Program is a sequence of operations that computes what a rule matches or does: it loads properties of a packet into
// registers of the kernel, looks them up in sets, and uses the results. A rule with a program matches only if each lookup
// finds an element. Registers have four bytes and are numbered from zero; a value occupies as many successive registers as
// its type needs. Registers do not keep their values until the next rule. A program must not be modified after it was
// passed to a Writer.
type Program struct {
	Operations []Operation
}

// Operation is a step of a Program.
type Operation struct {
	Do Action
	// At is the first register that the operation reads, or into which it loads something if it has no To.
	At int
	// To is the first register of the result of a lookup, or of the value that Remember stores.
	To int
	// Set is the name of the set.
	Set string
	// Number is a constant of 32 bits, the length of a prefix in bits, the number of random numbers or the timeout in seconds.
	Number uint32
}

// Action is what an Operation does.
type Action uint8

// LoadSource and the other constants are the actions of operations.
const (
	// LoadSource loads the source address of the packet into At.
	LoadSource Action = iota
	// LoadDestination loads the destination address.
	LoadDestination
	// LoadProtocol loads the protocol.
	LoadProtocol
	// LoadPort loads the destination port.
	LoadPort
	// LoadOriginalDestination loads the destination address before address translation.
	LoadOriginalDestination
	// LoadOriginalPort loads the destination port before address translation.
	LoadOriginalPort
	// LoadZeroAddress loads an address of zeros.
	LoadZeroAddress
	// LoadNumber loads Number.
	LoadNumber
	// LoadRandom loads a random number below Number.
	LoadRandom
	// MaskAddress sets the bits of the address at At to zero, except for the first Number.
	MaskAddress
	// Find loads the value that a map contains for the key at At into To. Without an element the rule does not match.
	Find
	// Contained matches if a set contains the key at At.
	Contained
	// Missing matches if a set does not contain the key at At.
	Missing
	// Decide uses the verdict that a map of verdicts contains for the key at At.
	Decide
	// Remember stores the value at To for the key at At in a set with Max, until Number seconds have passed. If the set
	// contains the key, it keeps the value, and the time starts again. If the set is full, the rule does not match.
	Remember
	// Forget removes the key at At from such a set. To is the register of a value, which is ignored.
	Forget
	// Translate replaces the destination of the packet with the address and the port at At.
	Translate
)

// program appends the expressions of a program.
func (e *encoder) program(p *Program) {
	for _, o := range p.Operations {
		at, to, set := nftnl.Registers(o.At), nftnl.Registers(o.To), setName(o.Set)
		switch o.Do {
		case LoadSource:
			e.address(false, at)
		case LoadDestination:
			e.address(true, at)
		case LoadProtocol:
			e.Meta(unix.NFT_META_L4PROTO, at)
		case LoadPort:
			e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, destinationPort, 2, at)
		case LoadOriginalDestination:
			e.OriginalConntrack(e.originalAddress(), at)
		case LoadOriginalPort:
			e.OriginalConntrack(unix.NFT_CT_PROTO_DST, at)
		case LoadZeroAddress:
			e.Set(at, make([]byte, 4*Address.words(e.family)))
		case LoadNumber:
			e.Set(at, native(o.Number))
		case LoadRandom:
			e.Random(o.Number, at)
		case MaskAddress:
			mask := maskOf(int(o.Number), 4*Address.words(e.family))
			e.Mask(at, mask, make([]byte, len(mask)))
		case Find:
			e.LookUp(set, at, to)
		case Contained:
			e.InSet(set, at)
		case Missing:
			e.NotInSet(set, at)
		case Decide:
			e.VerdictOf(set, 0, at)
		case Remember:
			e.AddToMap(set, at, to, uint64(o.Number)*1000)
		case Forget:
			e.RemoveFromMap(set, at, to)
		case Translate:
			e.TranslateDestination(nftFamily(e.family), at, nftnl.Registers(o.At+Address.words(e.family)))
		}
	}
}

// text returns the program as words for transcripts: an assignment for each operation.
func (p *Program) text(protocol string) string {
	words := make([]string, 0, len(p.Operations))
	for _, o := range p.Operations {
		load := func(format string, args ...any) string {
			return fmt.Sprintf("r%d = ", o.At) + fmt.Sprintf(format, args...)
		}
		words = append(words, map[Action]string{
			LoadSource: load("%s saddr", protocol), LoadDestination: load("%s daddr", protocol), LoadProtocol: load("l4proto"), LoadPort: load("dport"),
			LoadOriginalDestination: load("ct original %s daddr", protocol), LoadOriginalPort: load("ct original proto-dst"),
			LoadZeroAddress: load("0"), LoadNumber: load("%d", o.Number), LoadRandom: load("random mod %d", o.Number),
			MaskAddress: load("r%d / %d", o.At, o.Number), Find: fmt.Sprintf("r%d = @%s[r%d]", o.To, setName(o.Set), o.At),
			Contained: fmt.Sprintf("r%d in @%s", o.At, setName(o.Set)), Missing: fmt.Sprintf("r%d not in @%s", o.At, setName(o.Set)),
			Decide: fmt.Sprintf("r%d vmap @%s", o.At, setName(o.Set)), Remember: fmt.Sprintf("update @%s[r%d] = r%d for %ds", setName(o.Set), o.At, o.To, o.Number),
			Forget: fmt.Sprintf("delete @%s[r%d]", setName(o.Set), o.At), Translate: fmt.Sprintf("dnat to r%d", o.At),
		}[o.Do])
	}
	return strings.Join(words, "; ")
}
