package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
)

// Sized contains the methods of generated protobuf types with which Kind.Store encodes an object into a buffer of the
// right size. All built-in kinds have them.
type Sized interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
}

// Store returns the bytes of obj to write to etcd: upstream's protobuf envelope with the message of
// obj, followed by the current Level.
func (k *Kind) Store(obj Sized) ([]byte, error) {
	size := obj.Size()
	head := len(k.proto) + 1 + uvarintLen(size)
	data := make([]byte, head+size, head+size+16)
	copy(data, k.proto)
	data[len(k.proto)] = tagRaw
	binary.PutUvarint(data[len(k.proto)+1:], uint64(size))
	if _, err := obj.MarshalToSizedBuffer(data[head:]); err != nil {
		return nil, fmt.Errorf("encoding %s: %w", k.Kind, err)
	}
	return append(data, storedEnd...), nil
}

// storedEnd is what Store appends after the message of the object: empty contentEncoding and
// contentType, and the Level.
var storedEnd = binary.AppendUvarint(binary.AppendUvarint([]byte{3<<3 | 2, 0, 4<<3 | 2, 0}, levelField<<3), Level)

// Envelope is the decoded envelope (runtime.Unknown) around the protobuf message of an object.
type Envelope struct {
	APIVersion, Kind string
	// Raw is the protobuf message of the object, a subslice of the parsed data.
	Raw []byte
	// Level is the Level of the program that wrote the data. Zero for upstream's API server.
	Level uint64
}

// ParseEnvelope parses the envelope of a protobuf object without decoding the object. It returns
// ErrEnvelope if data does not start with Magic or is malformed.
func ParseEnvelope(data []byte) (Envelope, error) {
	var e Envelope
	data, ok := bytes.CutPrefix(data, []byte(Magic))
	if !ok {
		return e, ErrEnvelope
	}
	err := fields(data, func(number int, value []byte, n uint64) error {
		switch number {
		case 1:
			return fields(value, func(number int, value []byte, _ uint64) error {
				switch number {
				case 1:
					e.APIVersion = string(value)
				case 2:
					e.Kind = string(value)
				}
				return nil
			})
		case 2:
			e.Raw = value
		case levelField:
			e.Level = n
		}
		return nil
	})
	return e, err
}

// Raw returns the protobuf message of an object in data, bytes from etcd. It shares memory with data. current reports
// whether it was written with the current Level, so that it can be served unchanged. Raw is like ParseEnvelope
// without allocations.
func Raw(data []byte) (raw []byte, current bool, err error) {
	from, to, current, err := bounds(data)
	if err != nil {
		return nil, false, err
	}
	return data[from:to:to], current, nil
}

// Current returns the range [from, to) of the protobuf message in bytes from etcd. ok is false if they were not
// written with the current Level or are malformed, so that the object must be decoded and defaulted.
func Current(data []byte) (from, to int, ok bool) {
	from, to, current, err := bounds(data)
	return from, to, current && err == nil
}

// bounds returns the range of the protobuf message in data, which includes the envelope, and
// whether it was written with the current Level.
func bounds(data []byte) (from, to int, current bool, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(Magic))
	if !ok {
		return 0, 0, false, ErrEnvelope
	}
	if from, to, ok := ownBounds(rest); ok {
		return len(Magic) + from, len(Magic) + to, true, nil
	}
	var level uint64
	for len(rest) > 0 {
		var number int
		var value []byte
		var n uint64
		if number, value, n, rest, err = nextField(rest); err != nil {
			return 0, 0, false, err
		}
		switch number {
		case 2:
			to = len(data) - len(rest)
			from = to - len(value)
		case levelField:
			level = n
		}
	}
	return from, to, level == Level, nil
}

// ownBounds returns the range of the protobuf message in data, which is without the Magic, if Store has written it
// with the current Level. Otherwise ok is false. It is faster than parsing all fields.
func ownBounds(data []byte) (from, to int, ok bool) {
	if len(data) < 2 || data[0] != tagTypeMeta || data[1] >= 0x80 || len(data) < 3+int(data[1]) {
		return 0, 0, false
	}
	at := 2 + int(data[1])
	if data[at] != tagRaw {
		return 0, 0, false
	}
	length, size := binary.Uvarint(data[at+1:])
	if size <= 0 || length > uint64(len(data)-at-1-size) {
		return 0, 0, false
	}
	from = at + 1 + size
	to = from + int(length)
	return from, to, string(data[to:]) == string(storedEnd)
}

// fields calls f for each field of a protobuf message with its number. value is set for length-delimited fields, n for
// varints. It returns the error of f, or ErrEnvelope if the message is malformed.
func fields(data []byte, f func(number int, value []byte, n uint64) error) error {
	for len(data) > 0 {
		number, value, n, rest, err := nextField(data)
		if err != nil {
			return err
		}
		if err := f(number, value, n); err != nil {
			return err
		}
		data = rest
	}
	return nil
}

// nextField parses the first field of a protobuf message and returns its number and the remaining
// data. value is set for length-delimited fields, n for varints. It returns ErrEnvelope if the
// field is malformed.
func nextField(data []byte) (number int, value []byte, n uint64, rest []byte, err error) {
	tag, size := binary.Uvarint(data)
	if size <= 0 || tag>>3 == 0 || tag>>3 > 1<<29 {
		return 0, nil, 0, nil, ErrEnvelope
	}
	data = data[size:]
	number = int(tag >> 3)
	switch tag & 7 {
	case 0:
		if n, size = binary.Uvarint(data); size <= 0 {
			return 0, nil, 0, nil, ErrEnvelope
		}
		return number, nil, n, data[size:], nil
	case 1:
		if len(data) < 8 {
			return 0, nil, 0, nil, ErrEnvelope
		}
		return number, nil, 0, data[8:], nil
	case 2:
		length, size := binary.Uvarint(data)
		if size <= 0 || length > uint64(len(data)-size) {
			return 0, nil, 0, nil, ErrEnvelope
		}
		end := size + int(length)
		return number, data[size:end:end], 0, data[end:], nil
	case 5:
		if len(data) < 4 {
			return 0, nil, 0, nil, ErrEnvelope
		}
		return number, nil, 0, data[4:], nil
	}
	return 0, nil, 0, nil, ErrEnvelope
}

// Metadata returns the metadata field of an object's protobuf message, including its tag, or nil if it has none. This
// is the message of the object's PartialObjectMetadata. It returns ErrEnvelope if raw is malformed.
func Metadata(raw []byte) ([]byte, error) {
	var out []byte
	for data := raw; len(data) > 0; {
		number, _, _, rest, err := nextField(data)
		if err != nil {
			return nil, err
		}
		if number == 1 {
			field := data[:len(data)-len(rest)]
			if out == nil {
				out = slices.Clip(field)
			} else {
				out = append(out, field...)
			}
		}
		data = rest
	}
	return out, nil
}

// fieldManaged is the field number of ObjectMeta.managedFields.
const fieldManaged = 17

// AppendUnmanaged appends the protobuf message raw of an object without its managed fields to dst. It returns
// ErrEnvelope if raw is malformed.
func AppendUnmanaged(dst, raw []byte) ([]byte, error) {
	for data := raw; len(data) > 0; {
		number, metadata, _, rest, err := nextField(data)
		if err != nil {
			return dst, err
		}
		field := data[:len(data)-len(rest)]
		data = rest
		if number != fieldMetadata || metadata == nil {
			dst = append(dst, field...)
			continue
		}
		size := 0
		if err := fieldsExceptManaged(metadata, func(field []byte) { size += len(field) }); err != nil {
			return dst, err
		}
		dst = append(dst, tagMetadata)
		dst = binary.AppendUvarint(dst, uint64(size))
		if err := fieldsExceptManaged(metadata, func(field []byte) { dst = append(dst, field...) }); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// fieldsExceptManaged calls keep for each field, including its tag, of a protobuf ObjectMeta except
// managedFields.
func fieldsExceptManaged(metadata []byte, keep func(field []byte)) error {
	for data := metadata; len(data) > 0; {
		number, _, _, rest, err := nextField(data)
		if err != nil {
			return err
		}
		if number != fieldManaged {
			keep(data[:len(data)-len(rest)])
		}
		data = rest
	}
	return nil
}

// versionSize returns the number of bytes that appendVersion appends for revision.
func versionSize(revision int64) int {
	if revision == 0 {
		return 0
	}
	digits := 1
	for n := revision; n >= 10; n /= 10 {
		digits++
	}
	return 4 + digits
}

// appendVersion appends a second metadata field to the protobuf message of an object. It contains
// only revision as the resource version; decoders merge both metadata fields. It appends nothing
// for zero.
func appendVersion(dst []byte, revision int64) []byte {
	size := versionSize(revision)
	if size == 0 {
		return dst
	}
	dst = append(dst, tagMetadata, byte(size-2), tagResourceVersion, byte(size-4))
	return strconv.AppendInt(dst, revision, 10)
}

// Size returns the number of bytes that AppendProto appends for raw and revision.
func (k *Kind) Size(raw []byte, revision int64) int {
	n := len(raw) + versionSize(revision)
	return len(k.proto) + 1 + uvarintLen(n) + n + 4
}

// AppendProto appends a complete protobuf object of kind k to dst: the envelope with the message
// raw, and revision as its resource version (zero means none).
func (k *Kind) AppendProto(dst, raw []byte, revision int64) []byte {
	dst = append(dst, k.proto...)
	dst = append(dst, tagRaw)
	dst = binary.AppendUvarint(dst, uint64(len(raw)+versionSize(revision)))
	dst = append(dst, raw...)
	dst = appendVersion(dst, revision)
	return append(dst, 3<<3|2, 0, 4<<3|2, 0)
}

// ProtoList encodes a list of objects as protobuf. The encoding starts with the total size in
// bytes, so the caller first calls Count for all items, and then Head, Item for all items, and
// Tail.
type ProtoList struct {
	kind *Kind
	meta []byte
	size int
	n    int
}

// NewProtoList returns a list of kind kind without items. meta is its metadata as ListMeta returns
// it.
func NewProtoList(kind *Kind, meta []byte) *ProtoList {
	return &ProtoList{kind: kind, meta: meta, size: 1 + uvarintLen(len(meta)) + len(meta)}
}

// Count adds the size of an item with the protobuf message raw and the resource version revision.
func (l *ProtoList) Count(raw []byte, revision int64) {
	n := len(raw) + versionSize(revision)
	l.size += 1 + uvarintLen(n) + n
	l.n++
}

// Len returns the number of items for which Count was called.
func (l *ProtoList) Len() int { return l.n }

// Head appends the part of the encoding before the items to dst. Count must have been called for
// all items.
func (l *ProtoList) Head(dst []byte) []byte {
	dst = append(dst, l.kind.proto...)
	dst = append(dst, tagRaw)
	dst = binary.AppendUvarint(dst, uint64(l.size))
	dst = append(dst, tagMetadata)
	dst = binary.AppendUvarint(dst, uint64(len(l.meta)))
	return append(dst, l.meta...)
}

// Item appends an item to dst. Count must have been called with the same raw and revision.
func (l *ProtoList) Item(dst, raw []byte, revision int64) []byte {
	dst = append(dst, tagItems)
	dst = binary.AppendUvarint(dst, uint64(len(raw)+versionSize(revision)))
	dst = append(dst, raw...)
	return appendVersion(dst, revision)
}

// Tail appends the part of the encoding after the items to dst.
func (l *ProtoList) Tail(dst []byte) []byte { return append(dst, 3<<3|2, 0, 4<<3|2, 0) }

// Size returns the size of the complete encoding in bytes, for Content-Length. Count must have been
// called for all items.
func (l *ProtoList) Size() int {
	return len(l.kind.proto) + 1 + uvarintLen(l.size) + l.size + 4
}

// ListMeta appends the protobuf message of a list's metadata to dst: the resource version, the
// continue token next, and the number of remaining items, which is omitted if negative.
func ListMeta(dst []byte, revision int64, next string, remaining int64) []byte {
	dst = append(dst, 1<<3|2, 0) // selfLink
	var digits []byte
	if revision != 0 {
		digits = strconv.AppendInt(make([]byte, 0, 20), revision, 10)
	}
	dst = appendString(dst, 2<<3|2, string(digits))
	dst = appendString(dst, 3<<3|2, next)
	if remaining >= 0 {
		dst = append(dst, 4<<3)
		dst = binary.AppendUvarint(dst, uint64(remaining))
	}
	return dst
}

// AppendProtoEvent appends a protobuf watch event to dst: the length in four bytes, and a
// metav1.WatchEvent of type event (ADDED, …) that contains an object. raw is the protobuf message
// of the object, and revision its resource version.
func (k *Kind) AppendProtoEvent(dst []byte, event string, raw []byte, revision int64) []byte {
	object := k.Size(raw, revision)
	dst = eventHead(dst, event, object)
	return k.AppendProto(dst, raw, revision)
}

// AppendProtoEventObject appends a protobuf watch event to dst, as AppendProtoEvent does. object is a complete
// protobuf object, with its envelope.
func AppendProtoEventObject(dst []byte, event string, object []byte) []byte {
	return append(eventHead(dst, event, len(object)), object...)
}

// eventHead appends the part of a protobuf watch event before the object, which has object bytes.
func eventHead(dst []byte, event string, object int) []byte {
	extension := 1 + uvarintLen(object) + object
	frame := 1 + uvarintLen(len(event)) + len(event) + 1 + uvarintLen(extension) + extension
	dst = binary.BigEndian.AppendUint32(dst, uint32(frame))
	dst = appendString(dst, 1<<3|2, event)
	dst = append(dst, 2<<3|2)
	dst = binary.AppendUvarint(dst, uint64(extension))
	dst = append(dst, 1<<3|2)
	return binary.AppendUvarint(dst, uint64(object))
}
