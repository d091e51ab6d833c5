// Package registry contains the resources that the API server serves: for each group, version and
// resource it has the api.Resource, the store.Collection of the objects, and the hooks, actions and
// streams of other packages.
package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/storage/value"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/base/broadcast"
	"hyperkube/internal/store"
)

// Config is the configuration of a Registry, which contains the resources that the server serves.
type Config struct {
	// Store contains all objects, except those of built-in resources for which StoreOverride returns
	// another store. Those cannot be written in one transaction with others. StoreOverride may be nil.
	Store         *store.Store
	StoreOverride func(schema.GroupResource) *store.Store
	// Resources are the initial resources. A resource with StoredAs must follow the one whose
	// storage it shares.
	Resources []*api.Resource
	// Transformer returns the encryption for the objects of a resource, or nil. It may be nil.
	Transformer func(schema.GroupResource) value.Transformer
	// TTL returns the lifetime of a resource's objects in seconds, or zero for no limit. It may be
	// nil.
	TTL func(schema.GroupResource) int64
}

// Registry contains the served resources. It is safe for concurrent use.
type Registry struct {
	cfg Config

	mu    sync.Mutex // serializes writers of table
	table atomic.Pointer[table]
	// changed is notified when another table is published.
	changed broadcast.Broadcast
}

// table contains the served resources at one time. It is immutable once it is published, so readers
// need no lock.
type table struct {
	byGVR map[schema.GroupVersionResource]*Resource
	// all resources in the order of addition.
	all []*Resource
}

// Resource is one version of a resource that the API server serves. Its fields do not change after
// it has been added.
type Resource struct {
	*api.Resource
	// Collection contains the objects. It is nil for reviews. All served versions of a kind share
	// it.
	Collection *store.Collection
	// Object and List are the kinds of objects and lists.
	Object, List *wire.Kind
	// TTL is the lifetime of written objects in seconds, zero for no limit.
	TTL int64

	// storage is the resource in whose form the objects are stored: this resource itself unless
	// StoredAs is set.
	storage *Resource
	// slot is the first of the slots of Entry.Memo that this resource uses.
	slot int
	// deprecation is the warning for a deprecated version, or "".
	deprecation string
	// generated is set if objects have a generated Go type with a protobuf form, in which they are
	// stored.
	generated bool

	// extra contains the hooks, actions and streams. All versions of a resource share it.
	extra *extra
}

// extra contains what other packages have added to a resource: hooks, actions, streams and computed
// objects. mu guards the other fields.
type extra struct {
	mu      sync.RWMutex
	hooks   []Hook
	actions map[schema.GroupVersionResource]map[string]*Action
	streams map[schema.GroupVersionResource]map[string]*Stream
	// computed may be nil.
	computed func(context.Context) ([]api.Object, error)
}

// New returns a registry that serves cfg.Resources. Their caches are filled at first use. It
// returns an error for duplicate resources and for those whose storage does not exist.
func New(cfg Config) (*Registry, error) {
	r := &Registry{cfg: cfg}
	r.table.Store(&table{byGVR: map[schema.GroupVersionResource]*Resource{}})
	if err := r.Add(cfg.Resources...); err != nil {
		return nil, err
	}
	return r, nil
}

// Add makes the registry serve built-in resources in addition. On error, none of them is added.
func (r *Registry) Add(resources ...*api.Resource) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load()
	t := &table{byGVR: maps.Clone(old.byGVR), all: slices.Clone(old.all)}
	for _, res := range resources {
		if t.byGVR[res.GVR()] != nil {
			return fmt.Errorf("duplicate resource %s", res.GVR())
		}
		added, err := r.makeResource(t, res)
		if err != nil {
			return err
		}
		t.byGVR[res.GVR()] = added
		t.all = append(t.all, added)
	}
	r.publish(t)
	return nil
}

// makeResource creates the Resource for res with its codec and its collection in the store. A resource with StoredAs
// shares the collection of the resource in whose form it is stored, which must be in t. A review has no collection.
func (r *Registry) makeResource(t *table, res *api.Resource) (*Resource, error) {
	out := &Resource{
		Resource: res,
		Object:   wire.NewKind(res.GVK()),
		List:     wire.NewKind(res.GroupVersion().WithKind(res.ListKind)),
		extra:    newExtra(),
	}
	out.storage = out
	if obj := res.New(); deprecation.IsDeprecated(obj, kubernetesMajor, kubernetesMinor) {
		obj.GetObjectKind().SetGroupVersionKind(res.GVK())
		out.deprecation = deprecation.WarningMessage(obj)
	}
	if res.Review {
		return out, nil
	}
	if r.cfg.TTL != nil {
		out.TTL = r.cfg.TTL(res.GroupResource())
	}
	_, out.generated = res.New().(protoMessage)
	if res.StoredAs != nil {
		for _, other := range t.all {
			if other.StoragePath == res.StoragePath && other.GVK() == res.StoredAs.GroupVersionKind {
				out.storage, out.Collection = other, other.Collection
				out.extra, out.TTL = other.extra, other.TTL
			}
		}
		if out.Collection == nil {
			return nil, fmt.Errorf("resource %s is stored as %s, which is not served", res.GVR(), res.StoredAs)
		}
		for _, other := range t.all {
			if other.Collection == out.Collection {
				out.slot += slotsPerResource
			}
		}
		return out, nil
	}
	cfg := store.CollectionConfig{
		Resource: res.GroupResource(),
		Path:     res.StoragePath,
		Codec:    &codec{resource: res, kind: out.Object},
	}
	if r.cfg.Transformer != nil {
		cfg.Transformer = r.cfg.Transformer(res.GroupResource())
	}
	for _, name := range slices.Sorted(maps.Keys(res.Direct)) {
		if d := res.Direct[name]; d.Indexed {
			cfg.Indexes = append(cfg.Indexes, store.Index{Name: name, Of: func(e *store.Entry) string {
				value, _ := out.FieldOf(e, d)
				return value
			}})
		}
	}
	out.Collection = r.storeOf(res.GroupResource()).Collection(cfg)
	return out, nil
}

// storeOf returns the store that contains the objects of a resource.
func (r *Registry) storeOf(gr schema.GroupResource) *store.Store {
	if r.cfg.StoreOverride != nil {
		if s := r.cfg.StoreOverride(gr); s != nil {
			return s
		}
	}
	return r.cfg.Store
}

// kubernetesMajor and kubernetesMinor are the Kubernetes version that determines which API versions
// are deprecated.
const kubernetesMajor, kubernetesMinor = 1, 37

// BuiltIn reports whether the registry contains a built-in resource, not a custom one, of the API
// group.
func (r *Registry) BuiltIn(group string) bool {
	return slices.ContainsFunc(r.table.Load().all, func(res *Resource) bool { return res.Group == group && res.Custom == nil })
}

// Deprecation returns the warning that clients of this version of the resource get, or "" if it is
// not deprecated.
func (r *Resource) Deprecation() string {
	if r.Custom != nil {
		return r.Custom.Deprecation
	}
	return r.deprecation
}

// Lookup returns the served resource, or nil if it is not served. It takes no lock.
func (r *Registry) Lookup(gvr schema.GroupVersionResource) *Resource {
	return r.table.Load().byGVR[gvr]
}

// LookupSettled is like Lookup, but first waits until a replacement of custom resources in progress is complete. A
// request that failed because the collection of a custom resource was dropped uses it to find the replacement.
func (r *Registry) LookupSettled(gvr schema.GroupVersionResource) *Resource {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Lookup(gvr)
}

// Kind returns the served resource whose objects have the kind, or nil.
func (r *Registry) Kind(gvk schema.GroupVersionKind) *Resource {
	for _, res := range r.table.Load().all {
		if res.GVK() == gvk {
			return res
		}
	}
	return nil
}

// Resources returns all served resources, in the order of addition. The caller must not modify the
// slice. It does not change when resources are added later.
func (r *Registry) Resources() []*Resource { return r.table.Load().all }

// Collection returns the collection that stores the objects of a resource, or nil if the resource
// is not served or not stored.
func (r *Registry) Collection(gr schema.GroupResource) *store.Collection {
	for _, res := range r.table.Load().all {
		if res.GroupResource() == gr {
			return res.Collection
		}
	}
	return nil
}

// Store returns the main store. It contains all objects, except those for which
// Config.StoreOverride returns another store.
func (r *Registry) Store() *store.Store { return r.cfg.Store }

// GroupVersions returns the served group versions without duplicates, groups in the order of
// addition and the preferred version of each group first. Groups with only custom resources come
// last, sorted by name, with stable versions first.
func (r *Registry) GroupVersions() []schema.GroupVersion {
	const custom = 1 << 20
	var out []schema.GroupVersion
	order := map[string]int{}
	for _, res := range r.table.Load().all {
		if at, ok := order[res.Group]; !ok || at == custom && res.Custom == nil {
			order[res.Group] = len(order)
			if res.Custom != nil {
				order[res.Group] = custom
			}
		}
		if gv := res.GroupVersion(); !slices.Contains(out, gv) {
			out = append(out, gv)
		}
	}
	slices.SortStableFunc(out, func(a, b schema.GroupVersion) int {
		if c := cmp.Compare(order[a.Group], order[b.Group]); c != 0 || order[a.Group] != custom {
			return c
		}
		return cmp.Or(strings.Compare(a.Group, b.Group), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
	})
	return out
}

// StoredResource returns the resource as which the objects of r are stored in etcd. It differs from r if r shares the
// storage of another resource: events of both API groups are stored as core events.
func (r *Resource) StoredResource() schema.GroupResource { return r.storage.GroupResource() }

// Stored returns obj in the version in which it is stored, usually obj itself, without resource version. It sets
// default values, except for custom resources. It returns an error if obj cannot be converted.
func (r *Resource) Stored(obj api.Object) (api.Object, error) {
	if r.StoredAs != nil {
		stored, err := r.StoredAs.ToStored(obj)
		if err != nil {
			return nil, err // clients see this error
		}
		obj = stored
	}
	if r.Custom == nil {
		r.storage.Default(obj)
	}
	obj.SetResourceVersion("")
	return obj, nil
}

// Read returns the object of an entry in the version of this resource. The object is shared and must not be modified.
// It returns an error that wraps store.ErrCorrupt if the entry cannot be decrypted or decoded.
func (r *Resource) Read(e *store.Entry) (api.Object, error) {
	stored, err := e.Object()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Share does the same as Read for callers that keep the object for a long time, such as informers. The cache of
// decoded objects then need not keep the object too.
func (r *Resource) Share(e *store.Entry) (api.Object, error) {
	stored, err := e.Shared()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Trimmed does the same as Share, but the object has no managed fields if the codec of the resource can leave them
// out.
func (r *Resource) Trimmed(e *store.Entry) (api.Object, error) {
	stored, err := e.Trimmed()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Peek does the same as Read for callers that use the object only once. A newly decoded object is not cached.
func (r *Resource) Peek(e *store.Entry) (api.Object, error) {
	stored, err := e.Peek()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// stored returns the protobuf message that is stored in etcd for the entry e. ok is false if the message is not
// equivalent to the decoded object, for example because it was written in another version.
func (r *Resource) stored(e *store.Entry) (raw []byte, ok bool) {
	if r.StoredAs != nil || !r.generated || r.StoredJSON {
		return nil, false
	}
	raw, current, err := wire.Raw(e.Bytes())
	return raw, err == nil && current
}

// FieldOf returns the value of the field d of an entry, if possible without decoding the object. It returns false if
// the object cannot be decoded.
func (r *Resource) FieldOf(e *store.Entry, d api.Direct) (string, bool) {
	if raw, ok := r.stored(e); ok && len(d.Path) > 0 {
		value, err := wire.LookupField(raw, d.Path)
		return string(value), err == nil
	}
	obj, err := r.Peek(e)
	if err != nil {
		return "", false
	}
	return d.Of(obj), true
}

// Labelled reports whether a label selector matches the entry, if possible without decoding the object. It returns
// false if the object cannot be decoded.
func (r *Resource) Labelled(e *store.Entry, by labels.Selector) bool {
	if raw, ok := r.stored(e); ok {
		return by.Matches(wire.LabelsOf(raw))
	}
	obj, err := r.Read(e)
	return err == nil && by.Matches(labels.Set(obj.GetLabels()))
}

// served converts stored, the decoded object of the entry e, to the version of this resource. The result is shared
// with other callers and must not be modified. It returns an error if the conversion fails.
func (r *Resource) served(e *store.Entry, stored runtime.Object) (api.Object, error) {
	obj, ok := stored.(api.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an API object", stored)
	}
	if r.Custom != nil {
		return r.customOf(e, obj)
	}
	if r.StoredAs == nil {
		return obj, nil
	}
	obj, err := r.StoredAs.FromStored(obj)
	if err != nil {
		return nil, fmt.Errorf("converting from %s: %w", r.StoredAs.GroupVersionKind, err)
	}
	r.Default(obj)
	obj.GetObjectKind().SetGroupVersionKind(r.GVK())
	return obj, nil
}

// SameBytes reports whether storing obj would write exactly the bytes of the entry. It returns false if obj cannot be
// encoded.
func (r *Resource) SameBytes(obj api.Object, e *store.Entry) bool {
	data, err := r.storage.encode(obj)
	return err == nil && bytes.Equal(data, e.Bytes())
}

// encode returns the bytes that are stored in etcd for obj.
func (r *Resource) encode(obj api.Object) ([]byte, error) {
	if r.Custom != nil {
		return encodeCustom(obj)
	}
	return (&codec{resource: r.Resource, kind: r.Object}).Encode(obj)
}
