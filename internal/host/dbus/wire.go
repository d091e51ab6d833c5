package dbus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
)

// kindCall and the other constants are the types of D-Bus messages.
const (
	kindCall   = 1
	kindReply  = 2
	kindError  = 3
	kindSignal = 4
)

// fieldPath and the other constants are the codes of the header fields of D-Bus messages.
const (
	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldErrorName   = 4
	fieldReplySerial = 5
	fieldDestination = 6
	fieldSignature   = 8
	fieldDescriptors = 9
)

// maxMessageSize is the maximum size of a received message. The specification allows larger messages,
// which are not needed here.
const maxMessageSize = 1 << 20

// maxDepth is the maximum nesting depth of values.
const maxDepth = 32

// handle is how a message body refers to a file descriptor: the index of the descriptor among those that accompany
// the message.
type handle uint32

// message is a received and decoded message. replyTo is the serial number of the call that it
// answers, and fds the number of its file descriptors.
type message struct {
	kind                           byte
	path, iface, member, errorName string
	replyTo                        uint32
	fds                            int
	body                           []any
}

// drop closes the files in the body of a message that no caller receives.
func (m *message) drop() {
	for _, v := range m.body {
		if f, ok := v.(*os.File); ok {
			f.Close()
		}
	}
}

// writer encodes a message in little-endian byte order.
type writer struct{ bytes.Buffer }

// align appends zero bytes until the length is a multiple of n.
func (w *writer) align(n int) {
	for w.Len()%n != 0 {
		w.WriteByte(0)
	}
}

// uint32 appends a number, aligned to four bytes.
func (w *writer) uint32(n uint32) {
	w.align(4)
	w.Write(binary.LittleEndian.AppendUint32(nil, n))
}

// string appends a string with its length in four bytes and a final zero byte.
func (w *writer) string(s string) {
	w.uint32(uint32(len(s)))
	w.WriteString(s)
	w.WriteByte(0)
}

// signature appends a D-Bus signature, whose length is one byte.
func (w *writer) signature(s string) {
	w.WriteByte(byte(len(s)))
	w.WriteString(s)
	w.WriteByte(0)
}

// encodeCall encodes a method call as a message with the serial number serial. It returns an error
// for arguments that are neither strings nor int32s.
func encodeCall(c Call, serial uint32) ([]byte, error) {
	var body writer
	types := ""
	for _, a := range c.Args {
		switch v := a.(type) {
		case string:
			types += "s"
			body.string(v)
		case int32:
			types += "i"
			body.uint32(uint32(v))
		default:
			return nil, fmt.Errorf("unsupported argument type %T", a)
		}
	}
	var fields writer
	field := func(code byte, kind, value string) {
		if value == "" {
			return
		}
		fields.align(8)
		fields.WriteByte(code)
		fields.signature(kind)
		if kind == "g" {
			fields.signature(value)
		} else {
			fields.string(value)
		}
	}
	field(fieldPath, "o", c.Path)
	field(fieldInterface, "s", c.Interface)
	field(fieldMember, "s", c.Member)
	field(fieldDestination, "s", c.Destination)
	field(fieldSignature, "g", types)
	var out writer
	out.Write([]byte{'l', kindCall, 0, 1})
	out.uint32(uint32(body.Len()))
	out.uint32(serial)
	out.uint32(uint32(fields.Len()))
	out.Write(fields.Bytes()) // header fields start at a multiple of 8
	out.align(8)
	out.Write(body.Bytes())
	return out.Bytes(), nil
}

// byteOrder returns the byte order of the message that begins with head.
func byteOrder(head []byte) (binary.ByteOrder, error) {
	switch head[0] {
	case 'l':
		return binary.LittleEndian, nil
	case 'B':
		return binary.BigEndian, nil
	}
	return nil, errors.New("not a D-Bus message")
}

// sizeOf returns the size of a message in bytes, from head, its first 16 bytes. It returns an error
// for messages that are too long.
func sizeOf(head []byte) (int, error) {
	o, err := byteOrder(head)
	if err != nil {
		return 0, err
	}
	body, fields := o.Uint32(head[4:]), o.Uint32(head[12:])
	if body > maxMessageSize || fields > maxMessageSize {
		return 0, errors.New("message is too long")
	}
	return 16 + (int(fields)+7)/8*8 + int(body), nil
}

// decode decodes raw, which must be exactly one message. File descriptors in its body are returned
// as handles.
func decode(raw []byte) (*message, error) {
	if len(raw) < 16 {
		return nil, errors.New("not a D-Bus message")
	}
	o, err := byteOrder(raw)
	if err != nil {
		return nil, err
	}
	if size, err := sizeOf(raw); err != nil || size != len(raw) {
		return nil, errors.New("message size does not match its header")
	}
	m := &message{kind: raw[1]}
	d := &decoder{raw: raw, at: 12, order: o}
	fields, err := d.value("a(yv)", 0)
	if err != nil {
		return nil, err
	}
	types := ""
	for _, f := range fields.([]any) {
		pair := f.([]any)
		text, _ := pair[1].(string)
		number, _ := pair[1].(uint32)
		switch pair[0].(byte) {
		case fieldPath:
			m.path = text
		case fieldInterface:
			m.iface = text
		case fieldMember:
			m.member = text
		case fieldErrorName:
			m.errorName = text
		case fieldReplySerial:
			m.replyTo = number
		case fieldSignature:
			types = text
		case fieldDescriptors:
			if number > 16 {
				return nil, errors.New("message has too many file descriptors")
			}
			m.fds = int(number)
		}
	}
	if err := d.align(8); err != nil {
		return nil, err
	}
	// Alignment is relative to the start of the body, which is at a multiple of 8.
	for types != "" {
		one, rest, err := split(types)
		if err != nil {
			return nil, err
		}
		v, err := d.value(one, 0)
		if err != nil {
			return nil, err
		}
		m.body, types = append(m.body, v), rest
	}
	return m, nil
}

// decoder decodes the values of the message raw. at is the index of the next byte.
type decoder struct {
	raw   []byte
	at    int
	order binary.ByteOrder
}

// errShort is the error for a message that ends within a value.
var errShort = errors.New("message is truncated")

// align skips padding up to the next multiple of n.
func (d *decoder) align(n int) error {
	d.at = (d.at + n - 1) / n * n
	if d.at > len(d.raw) {
		return errShort
	}
	return nil
}

// take returns the next n bytes, which are not copied.
func (d *decoder) take(n int) ([]byte, error) {
	if n < 0 || n > len(d.raw)-d.at {
		return nil, errShort
	}
	d.at += n
	return d.raw[d.at-n : d.at], nil
}

// number reads an aligned unsigned number of 1, 2, 4 or 8 bytes.
func (d *decoder) number(size int) (uint64, error) {
	if err := d.align(size); err != nil {
		return 0, err
	}
	b, err := d.take(size)
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(d.order.Uint16(b)), nil
	case 4:
		return uint64(d.order.Uint32(b)), nil
	}
	return d.order.Uint64(b), nil
}

// text reads a string whose length is stored in a number of size bytes.
func (d *decoder) text(size int) (string, error) {
	n, err := d.number(size)
	if err != nil {
		return "", err
	}
	b, err := d.take(int(n) + 1)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// value decodes the next value, whose type is kind in the notation of D-Bus signatures. Structs,
// arrays and dict entries are returned as []any, and variants as the value that they contain. depth
// is the nesting depth of the value.
func (d *decoder) value(kind string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("message values are nested too deeply")
	}
	switch kind[0] {
	case 'y':
		n, err := d.number(1)
		return byte(n), err
	case 'b':
		n, err := d.number(4)
		return n != 0, err
	case 'n':
		n, err := d.number(2)
		return int16(n), err
	case 'q':
		n, err := d.number(2)
		return uint16(n), err
	case 'i':
		n, err := d.number(4)
		return int32(n), err
	case 'u':
		n, err := d.number(4)
		return uint32(n), err
	case 'h':
		n, err := d.number(4)
		return handle(n), err
	case 'x':
		n, err := d.number(8)
		return int64(n), err
	case 't':
		return d.number(8)
	case 'd':
		n, err := d.number(8)
		return math.Float64frombits(n), err
	case 's', 'o':
		return d.text(4)
	case 'g':
		return d.text(1)
	case 'v':
		inner, err := d.text(1)
		if err != nil {
			return nil, err
		}
		one, rest, err := split(inner)
		if err != nil || rest != "" {
			return nil, errors.New("variant must have exactly one type")
		}
		return d.value(one, depth+1)
	case 'a':
		return d.array(kind[1:], depth)
	case '(', '{':
		if err := d.align(8); err != nil {
			return nil, err
		}
		out := []any{}
		for rest := kind[1 : len(kind)-1]; rest != ""; {
			one, more, err := split(rest)
			if err != nil {
				return nil, err
			}
			v, err := d.value(one, depth+1)
			if err != nil {
				return nil, err
			}
			out, rest = append(out, v), more
		}
		return out, nil
	}
	return nil, fmt.Errorf("message has a value of unknown type %q", kind)
}

// array decodes an array whose items have the type of, and returns it as []any.
func (d *decoder) array(of string, depth int) (any, error) {
	n, err := d.number(4)
	if err != nil {
		return nil, err
	}
	switch of[0] {
	case '(', '{', 'x', 't', 'd':
		if err := d.align(8); err != nil {
			return nil, err
		}
	}
	if int(n) > len(d.raw)-d.at {
		return nil, errShort
	}
	out := []any{}
	for end := d.at + int(n); d.at < end; {
		before := d.at
		v, err := d.value(of, depth+1)
		if err != nil {
			return nil, err
		}
		if d.at > end || d.at == before {
			return nil, errShort
		}
		out = append(out, v)
	}
	return out, nil
}

// split returns the first complete type of a signature, and the remaining signature.
func split(types string) (one, rest string, err error) {
	end, err := typeEnd(types, 0)
	if err != nil {
		return "", "", err
	}
	return types[:end], types[end:], nil
}

// typeEnd returns the index after the first complete type of a signature, or an error if the
// signature is invalid. depth is the nesting depth.
func typeEnd(types string, depth int) (int, error) {
	if types == "" || depth > maxDepth {
		return 0, errors.New("message has an invalid type")
	}
	var closing byte
	switch types[0] {
	case 'a':
		n, err := typeEnd(types[1:], depth+1)
		return n + 1, err
	case '(':
		closing = ')'
	case '{':
		closing = '}'
	default:
		return 1, nil
	}
	for at := 1; at < len(types); {
		if types[at] == closing {
			if at == 1 {
				break // empty struct or dict entry
			}
			return at + 1, nil
		}
		n, err := typeEnd(types[at:], depth+1)
		if err != nil {
			return 0, err
		}
		at += n
	}
	return 0, errors.New("message has an unterminated type")
}
