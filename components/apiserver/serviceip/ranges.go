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

// portsKey is the key of the allocated ports, below "ranges".
const portsKey = "servicenodeports"

func rangesConfig() store.CollectionConfig {
	return store.CollectionConfig{
		Resource: schema.GroupResource{Resource: "rangeallocations"},
		Path:     "ranges",
		Codec:    rangeCodec{wire.NewKind(corev1.SchemeGroupVersion.WithKind("RangeAllocation"))},
	}
}

// rangeCodec encodes RangeAllocations, which are not an API resource.
type rangeCodec struct{ kind *wire.Kind }

// Encode implements store.Codec.
func (c rangeCodec) Encode(obj runtime.Object) ([]byte, error) {
	r, ok := obj.(*corev1.RangeAllocation)
	if !ok {
		return nil, fmt.Errorf("encoding a range: %T is none", obj)
	}
	return c.kind.Store(r)
}

// Decode implements store.Codec.
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

// load returns the allocated ports at a revision (see store.ListOptions) and their entry, which is
// nil if it does not exist yet.
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

func (a *Allocator) portsOf(e *store.Entry) (*ports, error) {
	obj, err := e.Object()
	if err != nil {
		return nil, err
	}
	return parsePorts(obj.(*corev1.RangeAllocation), a.cfg.NodePorts)
}

// storeOp returns the operation that replaces e, which may be nil, with p.
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
