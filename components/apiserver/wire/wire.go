// Package wire reads and writes the outer layers of API objects: the protobuf envelope after
// "k8s\0", leading type meta of JSON, and lists and watch events around encoded objects. It does
// not decode objects, so serving a stored object costs little more than a copy.
package wire

import (
	"encoding/binary"
	"errors"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Magic is the prefix of every protobuf object of Kubernetes, except of the items of a list.
const Magic = "k8s\x00"

// Field numbers and tags of the envelope, runtime.Unknown, and of fields that all objects have.
// They are part of the published API and never change.
const (
	tagTypeMeta        = 1<<3 | 2 // Unknown.typeMeta
	tagRaw             = 2<<3 | 2 // Unknown.raw
	tagMetadata        = 1<<3 | 2 // metadata of any object and of any list
	tagResourceVersion = 6<<3 | 2 // ObjectMeta.resourceVersion
	tagItems           = 2<<3 | 2 // items of any list

	// levelField is a field that runtime.Unknown does not have, so every decoder skips it. It
	// contains the Level of the writer.
	levelField = 1000
)

// Level identifies the version of the fields and defaults with which stored bytes were written.
// Bytes with the current level can be served unchanged; others must be decoded and defaulted first.
// It must be raised with every change of a built-in type, of a default, or of an Adopt function.
const Level = 1_37_02_04

// ErrEnvelope is the error for bytes that are not a protobuf object.
var ErrEnvelope = errors.New("malformed protobuf envelope")

// Kind is a group, version and kind with the precomputed JSON and protobuf of its type meta. It is
// immutable.
type Kind struct {
	schema.GroupVersionKind
	apiVersion string
	// json is `{"kind":"K","apiVersion":"V"` without a comma.
	json []byte
	// proto is Magic and the envelope's typeMeta field.
	proto []byte
}

// NewKind returns the Kind of gvk. Create it once and reuse it.
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

// APIVersion returns the group and version in one string, e.g. "apps/v1".
func (k *Kind) APIVersion() string { return k.apiVersion }

// appendString appends a protobuf field with the tag and the string s.
func appendString(dst []byte, tag byte, s string) []byte {
	dst = append(dst, tag)
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// uvarintLen returns the number of bytes of n as a protobuf varint.
func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// appendInt appends n in decimal, the format of resource versions.
func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }
