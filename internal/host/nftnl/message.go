package nftnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Message is a message of the kernel about an nf_tables object.
type Message struct {
	kind     int
	flags    uint16
	sequence uint32
	// Family is the family of the object, such as NFPROTO_IPV4.
	Family byte
	// Data contains the attributes of the object.
	Data []byte
}

// Change returns what happened to the object, such as NFT_MSG_DELRULE.
func (m Message) Change() int { return m.kind & 0xff }

// IsChange reports whether m is about an nf_tables object, and not an acknowledgement or an error.
func (m Message) IsChange() bool { return m.kind>>8 == unix.NFNL_SUBSYS_NFTABLES }

// errorCode returns the error number in a message of the kind NLMSG_ERROR. Zero means success.
func (m Message) errorCode() unix.Errno {
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.raw())))
}

// raw returns the data of a message that does not begin with a family, such as NLMSG_ERROR.
func (m Message) raw() []byte { return m.Data[:4] }

// genHeader is the size of struct nfgenmsg, with which the data of a message begins.
const genHeader = 4

// EachMessage calls visit for each message in data, which the kernel has sent. It stops at malformed data.
func EachMessage(data []byte, visit func(Message)) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr+genHeader || length > len(data) {
			return
		}
		m := Message{
			kind: int(binary.NativeEndian.Uint16(data[4:])), flags: binary.NativeEndian.Uint16(data[6:]), sequence: binary.NativeEndian.Uint32(data[8:]),
			Data: data[unix.SizeofNlMsghdr:length],
		}
		if m.IsChange() {
			m.Family, m.Data = m.Data[0], m.Data[genHeader:]
		}
		visit(m)
		data = data[min(len(data), align4(length)):]
	}
}

// Attributes iterates over attributes: the number and the value of each. It stops at malformed data.
func Attributes(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(data) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(data))
			if length < unix.SizeofNlAttr || length > len(data) {
				return
			}
			attribute := int(binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER))
			if !yield(attribute, data[unix.SizeofNlAttr:length]) {
				return
			}
			data = data[min(len(data), align4(length)):]
		}
	}
}

func align4(n int) int { return (n + 3) &^ 3 }
