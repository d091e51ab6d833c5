package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Replace serves resources, the versions of one custom resource, instead of those that are currently served under the
// name gr. Without resources, it removes them. Unless keep is set, it closes their watches and drops their cache,
// because the new definition may decode objects differently. Built-in resources are never replaced: if there is one
// with this name, Replace returns false and does nothing.
func (r *Registry) Replace(gr schema.GroupResource, keep bool, resources ...*api.Resource) bool {
	r.mu.Lock()
	old := r.table.Load()
	t := &table{byGVR: maps.Clone(old.byGVR)}
	var gone *store.Collection
	extra := newExtra()
	for _, res := range old.all {
		if res.GroupResource() != gr {
			t.all = append(t.all, res)
			continue
		}
		if res.Custom == nil {
			r.mu.Unlock()
			return false
		}
		delete(t.byGVR, res.GVR())
		gone, extra = res.Collection, res.extra
	}
	collection := gone
	if gone != nil && (!keep || len(resources) == 0) {
		r.cfg.Store.Drop(gone)
		collection = nil
	}
	if len(resources) > 0 {
		if collection == nil {
			collection = r.customCollection(resources[0])
		}
		for i, res := range resources {
			added := &Resource{
				Resource:   res,
				Collection: collection,
				Object:     wire.NewKind(res.GVK()),
				List:       wire.NewKind(res.GroupVersion().WithKind(res.ListKind)),
				slot:       i * slotsPerResource,
				extra:      extra,
			}
			added.storage = added
			t.byGVR[res.GVR()] = added
			t.all = append(t.all, added)
		}
	}
	t.all = slices.Clip(t.all)
	r.publish(t)
	r.mu.Unlock()
	return true
}

// customCollection returns the collection of the objects of a custom resource, which all its
// versions share. It has the encryption of the resource.
func (r *Registry) customCollection(res *api.Resource) *store.Collection {
	cfg := store.CollectionConfig{
		Resource: res.GroupResource(),
		Path:     res.StoragePath,
		Codec:    customCodec{res.Custom},
	}
	if r.cfg.Transformer != nil {
		cfg.Transformer = r.cfg.Transformer(res.GroupResource())
	}
	return r.cfg.Store.Collection(cfg)
}

// customCodec is the store.Codec of custom resources. Each object is stored as JSON in the version
// in which it was written.
type customCodec struct{ *api.Custom }

// Encode returns the bytes to store, including the type meta of the object.
func (customCodec) Encode(obj runtime.Object) ([]byte, error) { return encodeCustom(obj) }

// Decode returns a new object in its stored version, with the pruning and defaults of that
// version's schema. It returns an error if the object has no kind or its version is not defined
// anymore.
func (c customCodec) Decode(data []byte, revision int64) (runtime.Object, error) {
	obj, err := decodeCustom(data)
	if err != nil {
		return nil, err
	}
	if obj.GetKind() == "" || obj.GetAPIVersion() == "" {
		return nil, fmt.Errorf("decoding a custom resource: it has no kind")
	}
	if err := c.Load(obj); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", obj.GetKind(), err)
	}
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	return obj, nil
}

// decodeCustom decodes the JSON of a custom resource. It returns an error if it is malformed or null.
func decodeCustom(data []byte) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &obj.Object); err != nil {
		return nil, fmt.Errorf("decoding a custom resource: %w", err)
	}
	if obj.Object == nil {
		return nil, fmt.Errorf("decoding a custom resource: it is null")
	}
	return obj, nil
}

// encodeCustom returns the JSON of a custom resource with its kind and apiVersion at the beginning.
func encodeCustom(obj runtime.Object) ([]byte, error) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	data, err := marshalCustom(obj)
	if err != nil {
		return nil, err
	}
	return wire.NewKind(gvk).AppendJSON(nil, data), nil
}

// marshalCustom returns the JSON of a custom resource without kind and apiVersion, which the caller
// adds.
func marshalCustom(obj runtime.Object) ([]byte, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("encoding a custom resource: it is a %T", obj)
	}
	untyped := make(map[string]any, len(u.Object))
	for name, value := range u.Object {
		if name != "kind" && name != "apiVersion" {
			untyped[name] = value
		}
	}
	data, err := json.Marshal(untyped)
	if err != nil {
		return nil, fmt.Errorf("encoding a %s: %w", u.GetKind(), err)
	}
	return data, nil
}

// customOf returns the object of an entry, whose decoded form is stored, in the version of this resource. The result
// of a conversion webhook is cached as JSON. If the conversion fails, the error reports the entry as corrupt.
func (r *Resource) customOf(e *store.Entry, stored api.Object) (api.Object, error) {
	if !r.Custom.Remote || stored.GetObjectKind().GroupVersionKind().Version == r.Version {
		obj, err := r.StoredAs.FromStored(stored)
		if err != nil {
			// Its stored version is not defined anymore.
			return nil, e.Unreadable(err)
		}
		return obj, nil
	}
	data, err := e.Memo(r.slot+slotConverted, func() ([]byte, error) {
		obj, err := r.StoredAs.FromStored(stored)
		if err != nil {
			return nil, err
		}
		return encodeCustom(obj)
	})
	if err != nil {
		// The cause may be the object or the webhook.
		return nil, e.Unreadable(err)
	}
	return decodeCustom(data)
}
