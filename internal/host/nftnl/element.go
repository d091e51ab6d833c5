package nftnl

import (
	"golang.org/x/sys/unix"
)

// Element is an element of a set or a map.
type Element struct {
	// Key has a multiple of four bytes.
	Key []byte
	// Value is the value in a map. It is empty in sets and in maps of verdicts.
	Value []byte
	// HasVerdict is set in maps of verdicts.
	HasVerdict bool
	Verdict
	// Chain is the name of the chain of Jump.
	Chain string
	// UserData is returned to programs that list the elements. It may be empty.
	UserData []byte
}

// maxElements is the size in bytes at which the elements of a set are split over several messages, because the length
// of an attribute has 16 bits.
const maxElements = 60 << 10

// ElementList is a message that adds or removes elements of a set. The zero ElementList is closed.
type ElementList struct {
	batch  *Batch
	list   int
	remove bool
}

// BeginElements begins a message that adds elements to a set, or with NFT_MSG_DELSETELEM as change removes them. id
// identifies a set without a lasting name that the same batch creates; it is zero for others. The caller must close the
// list before it begins another message.
func (b *Batch) BeginElements(change int, family byte, table, set string, id uint32) ElementList {
	l := ElementList{batch: b, remove: change == unix.NFT_MSG_DELSETELEM}
	flags := uint16(unix.NLM_F_CREATE)
	if l.remove {
		flags = 0
	}
	b.Begin(change, family, flags)
	b.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	b.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	if id != 0 {
		b.Uint32(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
	}
	l.list = b.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return l
}

// Full reports whether the message is so large that the next element belongs into another one.
func (l *ElementList) Full() bool { return l.batch != nil && l.batch.Len() >= maxElements }

// Add appends an element. Only its key is used when elements are removed.
func (l *ElementList) Add(e Element) {
	b := l.batch
	at := b.Open(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, e.Key)
	if !l.remove {
		switch {
		case e.HasVerdict:
			b.verdict(unix.NFTA_SET_ELEM_DATA, e.Verdict, e.Chain)
		case len(e.Value) > 0:
			b.value(unix.NFTA_SET_ELEM_DATA, e.Value)
		}
		if len(e.UserData) > 0 {
			b.Bytes(unix.NFTA_SET_ELEM_USERDATA, e.UserData)
		}
	}
	b.Close(at)
}

// Close completes the message. It does nothing if the list is closed.
func (l *ElementList) Close() {
	if l.batch != nil {
		l.batch.Close(l.list)
		*l = ElementList{}
	}
}

// Elements adds elements to a set, or with NFT_MSG_DELSETELEM as change removes them, as BeginElements describes. It uses
// as many messages as required.
func (b *Batch) Elements(change int, family byte, table, set string, id uint32, elements []Element) {
	var list ElementList
	for _, e := range elements {
		if list.batch == nil || list.Full() {
			list.Close()
			list = b.BeginElements(change, family, table, set, id)
		}
		list.Add(e)
	}
	list.Close()
}
