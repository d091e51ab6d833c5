package serviceip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/store"
)

// portsKey is the key of the object with the allocated node ports in the collection of
// rangesConfig. The complete key in etcd ends with "ranges/servicenodeports".
const portsKey = "servicenodeports"

// rangesConfig returns the configuration of the internal collection that contains the set of
// allocated node ports. Its objects are not served to clients.
func rangesConfig() store.CollectionConfig {
	return store.CollectionConfig{
		Resource: schema.GroupResource{Resource: "rangeallocations"},
		Path:     "ranges",
		Codec:    rangeCodec{wire.NewKind(corev1.SchemeGroupVersion.WithKind("RangeAllocation"))},
	}
}

// rangeCodec encodes and decodes RangeAllocations for the store. They are not an API resource, so
// the codec of the registry does not support them.
type rangeCodec struct{ kind *wire.Kind }

// Encode implements store.Codec. It returns the Protobuf form of a RangeAllocation.
func (c rangeCodec) Encode(obj runtime.Object) ([]byte, error) {
	r, ok := obj.(*corev1.RangeAllocation)
	if !ok {
		return nil, fmt.Errorf("encoding a range: %T is none", obj)
	}
	return c.kind.Store(r)
}

// Decode implements store.Codec. It returns the RangeAllocation that data contains as Protobuf or
// JSON.
func (c rangeCodec) Decode(data []byte, revision int64) (runtime.Object, error) {
	out := &corev1.RangeAllocation{}
	if bytes.HasPrefix(data, []byte(wire.Magic)) {
		envelope, err := wire.ParseEnvelope(data)
		if err != nil {
			return nil, fmt.Errorf("decoding a range: %w", err)
		}
		if err := out.Unmarshal(envelope.Raw); err != nil {
			return nil, fmt.Errorf("decoding a range: %w", err)
		}
	} else if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("decoding a range: %w", err)
	}
	out.ResourceVersion = strconv.FormatInt(revision, 10)
	return out, nil
}

// load returns the set of allocated ports and its entry in the store. revision is 0 for the cache as it is, and -1
// for a cache that includes all completed writes. If nothing is stored yet, the set is empty and the entry is nil.
func (a *Allocator) load(ctx context.Context, revision int64) (*ports, *store.Entry, error) {
	e, err := a.ranges.Get(ctx, portsKey, revision)
	if errors.Is(err, store.ErrNotFound) {
		return newPorts(a.cfg.NodePorts), nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	p, err := a.portsOf(e)
	return p, e, err
}

// portsOf decodes the set of allocated ports in an entry of the store. It omits ports that are outside of the
// configured range.
func (a *Allocator) portsOf(e *store.Entry) (*ports, error) {
	obj, err := e.Object()
	if err != nil {
		return nil, err
	}
	return parsePorts(obj.(*corev1.RangeAllocation), a.cfg.NodePorts)
}

// storeOp returns the operation that stores the set p. It replaces the entry e, and the transaction
// fails if e is outdated. A nil e means that nothing is stored yet; then it fails if something is.
func (a *Allocator) storeOp(p *ports, e *store.Entry) (store.Op, error) {
	next := p.store()
	if e == nil {
		return a.ranges.Create(portsKey, next, 0), nil
	}
	obj, err := e.Object()
	if err != nil {
		return store.Op{}, err
	}
	obj.(*corev1.RangeAllocation).ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	next.ResourceVersion = ""
	return a.ranges.Update(e, next, 0), nil
}
