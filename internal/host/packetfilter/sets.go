package packetfilter

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/nftnl"
)

// Sets is the table that the names of sets have in patterns of chains, in the journal and in nftables.
const Sets Table = "set"

// Set describes a set, a map or a map of verdicts of nftables, which rules look up with a Program. The cost of a lookup
// and that of a change of an element do not depend on the number of elements. iptables has no sets.
type Set struct {
	// Name identifies the set among those of all users in a family.
	Name string
	// Key contains the types of the parts of a key.
	Key []Type
	// Value contains the types of the parts of a value. It is nil for sets without values.
	Value []Type
	// Verdicts is true for a map of verdicts: the values are targets. Value is then nil.
	Verdicts bool
	// Max is not zero for sets to which rules add elements that expire. It is the maximum number of elements. A Writer does not
	// change their elements, and they outlive the process.
	Max uint32
}

// Type is the type of a part of a key or of a value. The parts of a key are registers of the kernel: each has a multiple of
// four bytes.
type Type uint8

// Address and the other constants are the types of parts.
const (
	Address Type = iota
	Protocol
	Port
	Number
)

// words returns the size of a part in registers of four bytes.
func (t Type) words(family Family) int {
	if t == Address && family == IPv6 {
		return 4
	}
	return 1
}

// Element is an element of a Set.
type Element struct {
	// Set is the name of the set.
	Set string
	// Key and Value contain the parts, which the Append functions create. Value is empty in sets without values and in maps of
	// verdicts.
	Key, Value string
	// Verdict is the target in a map of verdicts: a chain, or a constant such as Drop, and the table of the rules that look
	// it up.
	Verdict Chain
	// Comment describes the element to users.
	Comment string
}

// AppendAddress appends a part of the type Address to a key or value.
func AppendAddress(key []byte, a netip.Addr) []byte { return append(key, a.AsSlice()...) }

// AppendProtocol appends a part of the type Protocol, such as "tcp", to a key or value.
func AppendProtocol(key []byte, name string) []byte {
	return append(key, protocolNumber(name), 0, 0, 0)
}

// AppendPort appends a part of the type Port to a key or value.
func AppendPort(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

// AppendNumber appends a part of the type Number to a key or value.
func AppendNumber(key []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(key, n) }

// Elements describes the elements of the sets of a Ruleset, so that a Writer can write the difference without comparing all
// of them.
type Elements struct {
	// All are all elements. Those of a set follow each other.
	All iter.Seq[Element]
	// Removed and Added are the difference to the Ruleset that was passed to Sync before. An element whose value changes is
	// in both.
	Removed, Added []Element
	// Rewrite makes Sync write All instead of the difference.
	Rewrite bool
}

// setChange describes how the elements of sets change.
type setChange struct {
	// sets are all sets, if rewrite or create is set.
	sets []Set
	// create replaces the sets that exist by new ones, because they may be those of another version.
	create bool
	// rewrite removes all elements before add.
	rewrite bool
	add     iter.Seq[Element]
	remove  []Element
}

// nftName returns the name of the set in nftables.
func (s Set) nftName() string { return setName(s.Name) }

func setName(name string) string { return Chain{Sets, name}.nftName() }

// typeMark is the number of the type with which the program nft prints numbers of 32 bits in the byte order of the machine.
const typeMark = 19

// describe returns the number of the type of a key or value in nftables, and its size in bytes.
func describe(types []Type, family Family) (kind, size uint32) {
	for _, t := range types {
		kind = kind<<typeBits | map[Type]uint32{Address: addressType(family), Protocol: typeProtocol, Port: typeService, Number: typeMark}[t]
		size += 4 * uint32(t.words(family))
	}
	return kind, size
}

// addressType returns the number of the type of addresses.
func addressType(family Family) uint32 {
	if family == IPv6 {
		return typeIPv6
	}
	return typeIPv4
}

// expiryInterval is the interval in milliseconds after which the kernel removes expired elements.
const expiryInterval = 60_000

// createSet creates a set. It does nothing if an equal one exists.
func (e *encoder) createSet(s Set) {
	var flags uint32
	keyType, keySize := describe(s.Key, e.family)
	valueType, valueSize := describe(s.Value, e.family)
	if s.Verdicts {
		valueType, valueSize = unix.NFT_DATA_VERDICT, 0
	}
	if s.Verdicts || len(s.Value) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Max > 0 {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	e.sets++
	e.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	e.String(unix.NFTA_SET_NAME, s.nftName())
	e.Uint32(unix.NFTA_SET_FLAGS, flags)
	e.Uint32(unix.NFTA_SET_KEY_TYPE, keyType)
	e.Uint32(unix.NFTA_SET_KEY_LEN, keySize)
	if flags&unix.NFT_SET_MAP != 0 {
		e.Uint32(unix.NFTA_SET_DATA_TYPE, valueType)
		e.Uint32(unix.NFTA_SET_DATA_LEN, valueSize)
	}
	if s.Max > 0 {
		e.Uint32(unix.NFTA_SET_GC_INTERVAL, expiryInterval)
		at := e.Open(unix.NFTA_SET_DESC)
		e.Uint32(unix.NFTA_SET_DESC_SIZE, s.Max)
		e.Close(at)
	}
	if len(s.Key) == 1 && s.Key[0] == Number {
		e.Bytes(unix.NFTA_SET_USERDATA, hostOrderKeys())
	}
	e.Uint32(unix.NFTA_SET_ID, e.sets)
}

// hostOrderKeys returns the user data with which the program nft prints the keys of a set in the byte order of the machine:
// the type, the length and the value of a part.
func hostOrderKeys() []byte {
	const keyByteOrder, hostOrder = 0, 1
	return append([]byte{keyByteOrder, 4}, native(hostOrder)...)
}

// prepareSets creates sets and removes elements, before rules that use the sets are written. exists reports whether a set
// exists.
func (e *encoder) prepareSets(c setChange, exists map[string]bool) {
	for _, s := range c.sets {
		if s.Max == 0 && c.create && exists[s.Name] {
			e.removeSet(s.nftName())
		}
		e.createSet(s)
		if s.Max == 0 && c.rewrite && !c.create {
			e.begin(unix.NFT_MSG_DELSETELEM, 0) // without elements: all
			e.String(unix.NFTA_SET_ELEM_LIST_SET, s.nftName())
		}
	}
	if !c.rewrite {
		e.changeElements(unix.NFT_MSG_DELSETELEM, func(yield func(Element) bool) {
			for _, element := range c.remove {
				if !yield(element) {
					return
				}
			}
		})
	}
}

// addElements adds the elements of sets, after the chains to which they refer were created.
func (e *encoder) addElements(c setChange) {
	if c.add != nil {
		e.changeElements(unix.NFT_MSG_NEWSETELEM, c.add)
	}
}

// changeElements adds or removes elements. Those of a set should follow each other.
func (e *encoder) changeElements(change int, elements iter.Seq[Element]) {
	set := ""
	var list nftnl.ElementList
	for element := range elements {
		if element.Set != set || list.Full() {
			list.Close()
			set = element.Set
			list = e.BeginElements(change, nftFamily(e.family), nftTable, setName(set), 0)
		}
		n := nftnl.Element{Key: []byte(element.Key), Value: []byte(element.Value)}
		if element.Verdict.Name != "" {
			n.Verdict, n.Chain = verdictOf(element.Verdict.Table, element.Verdict.Name)
			n.HasVerdict = true
		}
		if element.Comment != "" {
			n.UserData = appendUserData(nil, dataComment, element.Comment)
		}
		list.Add(n)
	}
	list.Close()
}
