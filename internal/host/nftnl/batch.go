// Package nftnl sends and receives messages of nf_tables, the packet filter of the kernel, over netlink.
//
// A [Batch] contains changes that the kernel makes atomically, and [List] reads objects. The package knows the format
// of messages and expressions, but no rules: package packetfilter builds these.
//
// The package github.com/google/nftables is not used, because it requests an acknowledgement for each message. The
// kernel queues these until the batch is complete, so the tens of thousands of messages with which the service proxy
// writes the Services of a large cluster overflow the queue, and the result of the batch is lost.
//
// https://wiki.nftables.org/wiki-nftables/index.php/Portal:DeveloperDocs/nftables_internals
package nftnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Batch collects changes of nf_tables objects that [Batch.Send] makes atomically. The zero Batch is empty. It is not
// safe for concurrent use.
//
// A change is one message: Begin starts it, and the other methods append attributes until the next Begin. Numbers are
// in network byte order.
//
// Size: one method for each kind of attribute and of expression.
type Batch struct {
	data []byte
	// message is the offset of the message that was begun last.
	message int
	// messages is the number of messages.
	messages int
}

// Empty reports whether b contains no changes.
func (b *Batch) Empty() bool { return b.messages == 0 }

// Begin starts the message of a change, such as NFT_MSG_NEWRULE, of an object in a family, such as NFPROTO_IPV4. flags
// are those of the netlink message besides NLM_F_REQUEST.
func (b *Batch) Begin(change int, family byte, flags uint16) {
	if b.messages == 0 {
		b.begin(unix.NFNL_MSG_BATCH_BEGIN, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, 0)
	}
	b.messages++
	b.begin(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|change), family, 0, flags)
}

// begin completes the previous message and appends the headers of another one.
func (b *Batch) begin(kind uint16, family byte, resource, flags uint16) {
	b.end()
	b.message = len(b.data)
	b.data = appendHeader(b.data, kind, family, resource, flags, uint32(b.messages))
}

// appendHeader appends the headers of a message: struct nlmsghdr and struct nfgenmsg.
func appendHeader(data []byte, kind uint16, family byte, resource, flags uint16, sequence uint32) []byte {
	order := binary.NativeEndian
	data = order.AppendUint32(data, 0) // the length, which is set later
	data = order.AppendUint16(data, kind)
	data = order.AppendUint16(data, flags|unix.NLM_F_REQUEST)
	data = order.AppendUint32(data, sequence)
	data = order.AppendUint32(data, 0) // the kernel fills in the port
	data = append(data, family, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(data, resource)
}

// end sets the length of the last message.
func (b *Batch) end() {
	if len(b.data) > b.message {
		binary.NativeEndian.PutUint32(b.data[b.message:], uint32(len(b.data)-b.message))
	}
}

// Len returns the size of the last message in bytes.
func (b *Batch) Len() int { return len(b.data) - b.message }

// String appends an attribute with a text.
func (b *Batch) String(attribute uint16, text string) {
	at := b.open(attribute)
	b.data = append(append(b.data, text...), 0)
	b.Close(at)
}

// Bytes appends an attribute with data.
func (b *Batch) Bytes(attribute uint16, data []byte) {
	at := b.open(attribute)
	b.data = append(b.data, data...)
	b.Close(at)
}

// Byte appends an attribute with one byte.
func (b *Batch) Byte(attribute uint16, value byte) {
	at := b.open(attribute)
	b.data = append(b.data, value)
	b.Close(at)
}

// Uint32 appends an attribute with a number.
func (b *Batch) Uint32(attribute uint16, value uint32) {
	at := b.open(attribute)
	b.data = binary.BigEndian.AppendUint32(b.data, value)
	b.Close(at)
}

// Uint64 appends an attribute with a number.
func (b *Batch) Uint64(attribute uint16, value uint64) {
	at := b.open(attribute)
	b.data = binary.BigEndian.AppendUint64(b.data, value)
	b.Close(at)
}

// Open starts an attribute that contains the attributes which are appended until Close is called with its result.
func (b *Batch) Open(attribute uint16) (at int) { return b.open(attribute | unix.NLA_F_NESTED) }

func (b *Batch) open(attribute uint16) (at int) {
	at = len(b.data)
	b.data = binary.NativeEndian.AppendUint16(b.data, 0) // the length, which Close sets
	b.data = binary.NativeEndian.AppendUint16(b.data, attribute)
	return at
}

// Close ends the attribute that Open or another method has started at the offset at.
func (b *Batch) Close(at int) {
	binary.NativeEndian.PutUint16(b.data[at:], uint16(len(b.data)-at))
	for len(b.data)%unix.NLA_ALIGNTO != 0 {
		b.data = append(b.data, 0)
	}
}
