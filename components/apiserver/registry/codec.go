package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
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
		m, ok := obj.(protoMessage)
		if !ok {
			return nil, fmt.Errorf("decoding %s: it has no protobuf form", c.kind.Kind)
		}
		envelope, err := wire.ParseEnvelope(data)
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", c.kind.Kind, err)
		}
		if envelope.Kind != c.kind.Kind {
			return nil, fmt.Errorf("decoding %s: stored is a %s %s", c.kind.Kind, envelope.APIVersion, envelope.Kind)
		}
		if err := unmarshal(m, envelope.Raw, trim); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", c.kind.Kind, err)
		}
		current = envelope.Level == wire.Level && envelope.APIVersion == c.kind.APIVersion()
	default:
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", c.kind.Kind, err)
		}
		switch gvk := obj.GetObjectKind().GroupVersionKind(); {
		case gvk.Kind == "":
			return nil, fmt.Errorf("decoding %s: %w", c.kind.Kind, runtime.NewMissingKindErr(shown(data)))
		case gvk.Version == "":
			return nil, fmt.Errorf("decoding %s: %w", c.kind.Kind, runtime.NewMissingVersionErr(shown(data)))
		case gvk.Kind != c.kind.Kind:
			return nil, fmt.Errorf("decoding %s: stored is a %s", c.kind.Kind, gvk.Kind)
		}
	}
	if !current {
		c.resource.Default(obj)
	}
	if trim {
		obj.SetManagedFields(nil) // of JSON
	}
	obj.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind)
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	return obj, nil
}

// shown is the beginning of a value, for errors.
func shown(data []byte) string { return string(data[:min(len(data), 100)]) }
