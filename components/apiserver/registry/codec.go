package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/api/former"
)

// protoMessage is implemented by the Go types of built-in kinds that have a protobuf form, in which they are stored.
type protoMessage interface {
	wire.Sized
	Unmarshal(data []byte) error
}

// codec encodes built-in kinds as protobuf, or as JSON if the type has no protobuf form or
// Resource.StoredJSON is set. It detects the encoding when decoding. It implements store.Codec.
type codec struct {
	resource *api.Resource
	kind     *wire.Kind
}

// Encode returns the bytes to store in etcd. The kind and version are those of the resource; the
// type meta of obj is ignored.
func (c *codec) Encode(obj runtime.Object) ([]byte, error) {
	if m, ok := obj.(wire.Sized); ok && !c.resource.StoredJSON {
		return c.kind.Store(m)
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", c.kind.Kind, err)
	}
	return c.kind.AppendJSON(nil, c.kind.Untyped(data)), nil
}

// Decode returns a new object with type meta and resource version, which is empty for the revision 0. It sets default
// values only if the stored bytes were written by another program or version, because this program sets them before
// it stores an object.
func (c *codec) Decode(data []byte, revision int64) (runtime.Object, error) {
	return c.decode(data, revision, false)
}

// DecodeTrimmed implements store.Trimmer. It does the same as Decode, but the object has no managed fields, which
// informers of controllers do not need.
func (c *codec) DecodeTrimmed(data []byte, revision int64) (runtime.Object, error) {
	return c.decode(data, revision, true)
}

// scratch is a pool of buffers for encoded objects without managed fields.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// unmarshal decodes the protobuf message raw into m, without managed fields if trim is set. m does
// not refer to raw afterwards, because generated protobuf types copy the bytes that they keep.
func unmarshal(m protoMessage, raw []byte, trim bool) error {
	if !trim {
		return m.Unmarshal(raw)
	}
	buffer := scratch.Get().(*[]byte)
	trimmed, err := wire.AppendUnmanaged((*buffer)[:0], raw)
	if err == nil {
		err = m.Unmarshal(trimmed)
	}
	if *buffer = trimmed; cap(trimmed) <= maxScratch {
		scratch.Put(buffer)
	}
	return err
}

// maxScratch is the maximum capacity, in bytes, of buffers that unmarshal returns to the pool.
const maxScratch = 64 << 10

// decode returns the object that was stored as data, protobuf or JSON, with type meta and, unless it is 0, the
// resource version revision. With trim it has no managed fields. It returns an error if data is malformed or of
// another kind.
func (c *codec) decode(data []byte, revision int64, trim bool) (runtime.Object, error) {
	obj := c.resource.New()
	current := false
	switch {
	case bytes.HasPrefix(data, []byte(wire.Magic)):
		if _, ok := obj.(protoMessage); !ok {
			return nil, fmt.Errorf("%s has no protobuf form", c.kind.Kind)
		}
		envelope, err := wire.ParseEnvelope(data)
		if err != nil {
			return nil, err
		}
		if envelope.Kind != c.kind.Kind {
			return nil, c.otherKind(envelope.APIVersion, envelope.Kind)
		}
		read := func(into runtime.Object) error { return unmarshal(into.(protoMessage), envelope.Raw, trim) }
		if current = envelope.Level == wire.Level && envelope.APIVersion == c.kind.APIVersion(); current {
			err = read(obj)
		} else {
			err = c.former(envelope.APIVersion, obj, read)
		}
		if err != nil {
			return nil, err
		}
	default:
		version, err := c.readJSON(data, obj)
		if err != nil {
			return nil, err
		}
		if version != c.kind.GroupVersion() || former.Differs(c.kind.GroupVersionKind, version) {
			obj = c.resource.New()
			if err := c.former(version.String(), obj, func(into runtime.Object) error {
				return kjson.UnmarshalCaseSensitivePreserveInts(data, into)
			}); err != nil {
				return nil, err
			}
		}
	}
	if !current {
		c.resource.Default(obj)
		if c.resource.Adopt != nil {
			c.resource.Adopt(obj)
		}
	}
	if c.resource.Complete != nil {
		c.resource.Complete(obj)
	}
	if trim {
		obj.SetManagedFields(nil) // for JSON
	}
	obj.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind)
	obj.SetResourceVersion("")
	if revision != 0 { // zero means that the object was just created and is not stored
		obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return obj, nil
}

// former decodes an object that is stored as apiVersion, possibly an older version of the kind, and stores the result
// in into. It calls decode with into or, if the older version has other fields, with an object of that version, which
// it then converts. It returns an error if it does not support the stored version.
func (c *codec) former(apiVersion string, into api.Object, decode func(into runtime.Object) error) error {
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return err
	}
	return former.Decode(c.kind.GroupVersionKind, version, into, decode)
}

// readJSON decodes stored JSON into obj and returns its version. It returns an error if the JSON is of another kind
// or has no kind and version. If it is of another version, obj may be incomplete, and the caller decodes it again as
// that version.
func (c *codec) readJSON(data []byte, obj api.Object) (schema.GroupVersion, error) {
	failed := kjson.UnmarshalCaseSensitivePreserveInts(data, obj)
	gvk := obj.GetObjectKind().GroupVersionKind()
	if failed != nil {
		var meta runtime.TypeMeta
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &meta); err != nil {
			return schema.GroupVersion{}, failed
		}
		gvk = meta.GroupVersionKind()
	}
	switch {
	case failed != nil && gvk.GroupVersion() == c.kind.GroupVersion():
		return gvk.GroupVersion(), failed
	case gvk.Kind == "" && gvk.Version == "":
		return gvk.GroupVersion(), runtime.NewMissingKindErr(truncated(data))
	case gvk.Version == "":
		return gvk.GroupVersion(), runtime.NewMissingVersionErr(truncated(data))
	case gvk.Kind != c.kind.Kind && gvk.Kind != "":
		return gvk.GroupVersion(), c.otherKind(gvk.GroupVersion().String(), gvk.Kind)
	}
	return gvk.GroupVersion(), nil
}

// otherKind returns the error for a stored object of another kind than the resource's. It is
// upstream's message, which contains Go types.
func (c *codec) otherKind(apiVersion, kind string) error {
	version := apiVersion[strings.LastIndex(apiVersion, "/")+1:]
	group, _, _ := strings.Cut(c.kind.Group, ".")
	if group == "" {
		group = "core"
	}
	return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", version, kind, group, c.kind.Kind)
}

// truncated returns the first 100 bytes of a stored value for error messages.
func truncated(data []byte) string { return string(data[:min(len(data), 100)]) }
