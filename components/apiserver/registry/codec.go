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

// protoMessage is what the published types of built-in kinds can do.
type protoMessage interface {
	wire.Sized
	Unmarshal(data []byte) error
}

// codec stores built-in kinds: protobuf, and JSON where the type has none or
// Resource.StoredJSON says so.
// What it reads is decoded by its content. It implements store.Codec.
type codec struct {
	resource *api.Resource
	kind     *wire.Kind
}

// Encode returns the bytes to store. The object's type meta is ignored.
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

// Decode returns a new object with its type meta and resource version set. It
// is defaulted unless whoever wrote it knew the same defaults.
func (c *codec) Decode(data []byte, revision int64) (runtime.Object, error) {
	return c.decode(data, revision, false)
}

// DecodeTrimmed is Decode without managed fields. It implements store.Trimmer.
func (c *codec) DecodeTrimmed(data []byte, revision int64) (runtime.Object, error) {
	return c.decode(data, revision, true)
}

// scratch are buffers for objects without their managed fields.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// unmarshal decodes a raw object. Types that are made of protobuf copy what they
// keep.
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

// maxScratch is up to which size a buffer is kept.
const maxScratch = 64 << 10

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
		obj.SetManagedFields(nil) // of JSON
	}
	obj.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind)
	obj.SetResourceVersion("")
	if revision != 0 { // else it was made just now, and is not stored
		obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return obj, nil
}

// former reads what may be stored in another version than the present one.
func (c *codec) former(apiVersion string, into api.Object, decode func(into runtime.Object) error) error {
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return err
	}
	return former.Decode(c.kind.GroupVersionKind, version, into, decode)
}

// readJSON reads obj from JSON that says that it is of the kind, and returns
// the version that it is in. An object of another version need not be read.
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
		return gvk.GroupVersion(), runtime.NewMissingKindErr(shown(data))
	case gvk.Version == "":
		return gvk.GroupVersion(), runtime.NewMissingVersionErr(shown(data))
	case gvk.Kind != c.kind.Kind && gvk.Kind != "":
		return gvk.GroupVersion(), c.otherKind(gvk.GroupVersion().String(), gvk.Kind)
	}
	return gvk.GroupVersion(), nil
}

// otherKind is the error about an object of another kind, in upstream's words,
// which name Go types.
func (c *codec) otherKind(apiVersion, kind string) error {
	version := apiVersion[strings.LastIndex(apiVersion, "/")+1:]
	group, _, _ := strings.Cut(c.kind.Group, ".")
	if group == "" {
		group = "core"
	}
	return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", version, kind, group, c.kind.Kind)
}

// shown is the beginning of a value, for errors.
func shown(data []byte) string { return string(data[:min(len(data), 100)]) }
