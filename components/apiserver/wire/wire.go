// Package wire writes and reads the outer layers of API objects by hand: the
// protobuf envelope behind "k8s\0", type meta in front of JSON, lists and watch
// frames around objects that are already encoded. Nothing here decodes an
// object, so that serving a stored one costs little more than a copy.
package wire

import (
	"encoding/binary"
	"errors"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Magic begins every protobuf object outside of a list.
const Magic = "k8s\x00"

// Field numbers and tags of the envelope, runtime.Unknown, and of what all
// objects have in common. They are part of the published API and never change.
const (
	tagTypeMeta        = 1<<3 | 2 // Unknown.typeMeta
	tagRaw             = 2<<3 | 2 // Unknown.raw
	tagMetadata        = 1<<3 | 2 // metadata of any object and of any list
	tagResourceVersion = 6<<3 | 2 // ObjectMeta.resourceVersion
	tagItems           = 2<<3 | 2 // items of any list

	// level is a field that runtime.Unknown does not have, so every decoder
	// skips it: the Level of who wrote the bytes.
	levelField = 1000
)

// Level tells which fields and defaults the writer of stored bytes knew. Bytes
// of this very level can be served as they are. It is raised with every change
// of a published type, of a default or of what is adopted.
const Level = 1_37_02_04

// ErrEnvelope: bytes that are not a protobuf object.
var ErrEnvelope = errors.New("malformed protobuf envelope")

// Kind is a kind with what is written of it precomputed. It is immutable.
type Kind struct {
	schema.GroupVersionKind
	apiVersion string
	// json is `{"kind":"K","apiVersion":"V"` without a comma.
	json []byte
	// proto is Magic and the envelope's typeMeta field.
	proto []byte
}

// NewKind precomputes gvk.
func NewKind(gvk schema.GroupVersionKind) *Kind {
	apiVersion := gvk.GroupVersion().String()
	k := &Kind{GroupVersionKind: gvk, apiVersion: apiVersion}
	k.json = []byte(`{"kind":` + strconv.Quote(gvk.Kind) + `,"apiVersion":` + strconv.Quote(apiVersion))
	var meta []byte
	meta = appendString(meta, 1<<3|2, apiVersion)
	meta = appendString(meta, 2<<3|2, gvk.Kind)
	k.proto = append([]byte(Magic), tagTypeMeta)
	k.proto = binary.AppendUvarint(k.proto, uint64(len(meta)))
	k.proto = append(k.proto, meta...)
	return k
}

// APIVersion is the group and version in one string, e.g. "apps/v1".
func (k *Kind) APIVersion() string { return k.apiVersion }

func appendString(dst []byte, tag byte, s string) []byte {
	dst = append(dst, tag)
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// appendInt appends n in decimal, as resource versions are written.
func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }
