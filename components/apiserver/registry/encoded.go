package registry

import (
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Slots of a watch cache entry (store.Entry.Memo) that cache the encoded forms of its object, relative to
// Resource.slot. Each served version of a resource has its own slots.
const (
	slotJSON = iota
	slotDeletedJSON
	slotRaw
	slotMetadataJSON
	slotDeletedMetadataJSON
	slotConverted
	slotsPerResource
)

// HasProtobuf reports whether objects of the resource can be served as protobuf. Custom resources
// cannot.
func (r *Resource) HasProtobuf() bool { return r.generated }

// Raw returns the protobuf message of the entry's object, without envelope and resource version. Usually it is a part
// of the stored bytes; otherwise the object is encoded once and cached. The caller must not modify it. It returns an
// error if the object cannot be decoded or its type has no protobuf form.
func (r *Resource) Raw(e *store.Entry) ([]byte, error) {
	if r.StoredAs == nil {
		raw, err := e.Part(wire.Current)
		if raw != nil || err != nil {
			return raw, err
		}
	}
	return e.Memo(r.slot+slotRaw, func() ([]byte, error) {
		obj, err := r.Peek(e)
		if err != nil {
			return nil, err
		}
		obj = obj.DeepCopyObject().(api.Object)
		m, ok := obj.(protoMessage)
		if !ok {
			return nil, fmt.Errorf("%s has no protobuf form", r.Kind)
		}
		obj.SetResourceVersion("")
		raw := make([]byte, m.Size())
		if _, err := m.MarshalToSizedBuffer(raw); err != nil {
			return nil, fmt.Errorf("encoding %s: %w", r.Kind, err)
		}
		return raw, nil
	})
}

// JSON returns the JSON of the entry's object, with its resource version but without kind and
// apiVersion. It is cached; the caller must not modify it.
func (r *Resource) JSON(e *store.Entry) ([]byte, error) {
	return e.Memo(r.slot+slotJSON, func() ([]byte, error) {
		obj, err := r.Peek(e)
		if err != nil {
			return nil, err
		}
		return r.Marshal(obj)
	})
}

// DeletedJSON returns the JSON of the last version of an object, as JSON does, with revision as its resource version.
// The object was deleted at revision, or changed so that a watch does not select it anymore. The result is the same
// for all watches, so it is cached.
func (r *Resource) DeletedJSON(e *store.Entry, revision int64) ([]byte, error) {
	return e.Memo(r.slot+slotDeletedJSON, func() ([]byte, error) {
		obj, err := r.Peek(e)
		if err != nil {
			return nil, err
		}
		obj = obj.DeepCopyObject().(api.Object)
		obj.SetResourceVersion(strconv.FormatInt(revision, 10))
		return r.Marshal(obj)
	})
}

// Marshal returns the JSON of an object without kind and apiVersion, which wire.Kind adds.
func (r *Resource) Marshal(obj api.Object) ([]byte, error) {
	if r.Custom != nil {
		return marshalCustom(obj)
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", r.Kind, err)
	}
	return r.Object.Untyped(data), nil
}

// Reread returns obj as a client would read it from the store, where empty lists and maps become nil. So the response
// to a dry run equals that of the actual write. It returns obj itself for custom resources, if the resource is stored
// as JSON, and if obj cannot be encoded.
func (r *Resource) Reread(obj api.Object) api.Object {
	from, ok := obj.(wire.Sized)
	if r.Custom != nil || r.StoredJSON || !ok {
		return obj
	}
	into := r.New()
	to, ok := into.(interface{ Unmarshal(data []byte) error })
	if !ok {
		return obj
	}
	raw := make([]byte, from.Size())
	if _, err := from.MarshalToSizedBuffer(raw); err != nil {
		return obj
	}
	if err := to.Unmarshal(raw); err != nil {
		return obj
	}
	if r.Complete != nil {
		r.Complete(into)
	}
	into.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
	return into
}

// MetadataJSON returns the JSON of the entry's PartialObjectMetadata without type meta. revision is zero, or the
// revision at which the entry was deleted or replaced, which is then the resource version. The result is cached; the
// caller must not modify it.
func (r *Resource) MetadataJSON(e *store.Entry, revision int64) ([]byte, error) {
	slot := slotMetadataJSON
	if revision != 0 {
		slot = slotDeletedMetadataJSON
	}
	return e.Memo(r.slot+slot, func() ([]byte, error) {
		obj, err := r.Peek(e)
		if err != nil {
			return nil, err
		}
		partial := PartialMetadata(obj)
		partial.TypeMeta = metav1.TypeMeta{}
		if revision != 0 {
			partial.ResourceVersion = strconv.FormatInt(revision, 10)
		}
		data, err := json.Marshal(partial)
		if err != nil {
			return nil, fmt.Errorf("encoding the metadata of a %s: %w", r.Kind, err)
		}
		return data, nil
	})
}

// PartialMetadata returns the metadata of obj as a PartialObjectMetadata of v1. It shares memory with obj.
func PartialMetadata(obj metav1.Object) *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{
		APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata",
	}}
	if a, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := a.GetObjectMeta().(*metav1.ObjectMeta); ok {
			p.ObjectMeta = *m
			return p
		}
	}
	p.ObjectMeta = metav1.ObjectMeta{
		Name:                       obj.GetName(),
		GenerateName:               obj.GetGenerateName(),
		Namespace:                  obj.GetNamespace(),
		SelfLink:                   obj.GetSelfLink(),
		UID:                        obj.GetUID(),
		ResourceVersion:            obj.GetResourceVersion(),
		Generation:                 obj.GetGeneration(),
		CreationTimestamp:          obj.GetCreationTimestamp(),
		DeletionTimestamp:          obj.GetDeletionTimestamp(),
		DeletionGracePeriodSeconds: obj.GetDeletionGracePeriodSeconds(),
		Labels:                     obj.GetLabels(),
		Annotations:                obj.GetAnnotations(),
		OwnerReferences:            obj.GetOwnerReferences(),
		Finalizers:                 obj.GetFinalizers(),
		ManagedFields:              obj.GetManagedFields(),
	}
	return p
}
