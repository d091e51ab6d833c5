// Package registry knows what the API server serves: for each group, version
// and resource its api.Resource, the store.Collection that has its objects, and
// what takes part in its writes or answers its subresources. It is the seam
// between the verbs and everything that adds to them.
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
	"hyperkube/internal/store"
)

// Config of a Registry.
type Config struct {
	// Store has all objects but those of built-in resources for which Apart
	// returns another one, which may then not be in one transaction with
	// others. Apart may be nil.
	Store *store.Store
	Apart func(schema.GroupResource) *store.Store
	// Resources are served from the beginning. A resource with StoredAs
	// comes after the one whose storage it shares.
	Resources []*api.Resource
	// Transformer returns how the objects of a resource are encrypted, or
	// nil. It may itself be nil.
	Transformer func(schema.GroupResource) value.Transformer
	// TTL returns after how many seconds objects of a resource go, or zero.
	// It may be nil.
	TTL func(schema.GroupResource) int64
}

// Registry is safe for use by several goroutines.
type Registry struct {
	cfg Config

	mu    sync.Mutex // for writers of table
	table atomic.Pointer[table]
	// change tells of new tables.
	change change
}

// table is never changed once it is published.
type table struct {
	byGVR map[schema.GroupVersionResource]*Resource
	// all in the order in which they were added.
	all []*Resource
}

// Resource is one served resource. Its fields are set when it is added and
// not changed afterwards.
type Resource struct {
	*api.Resource
	// Collection has the objects; nil for reviews. Resources of one kind
	// served in several versions share it.
	Collection *store.Collection
	// Object and List are the kinds of single objects and of lists.
	Object, List *wire.Kind
	// TTL in seconds of what is written, zero for none.
	TTL int64

	// storage describes the stored objects: this resource itself unless
	// StoredAs is set.
	storage *Resource
	// slot is the first of the resource's memo slots.
	slot int
	// deprecation is the warning for whoever uses a deprecated version; empty:
	// it is not deprecated.
	deprecation string
	// built tells that objects are of a generated Go type with a protobuf
	// form, in which they are stored.
	built bool

	// extra is shared by all versions of a resource.
	extra *extra
}

// extra is what others add to a resource.
type extra struct {
	mu      sync.RWMutex
	hooks   []Hook
	actions map[schema.GroupVersionResource]map[string]*Action
	streams map[schema.GroupVersionResource]map[string]*Stream
	// computed may be nil.
	computed func(context.Context) ([]api.Object, error)
}

// New makes a registry of cfg.Resources. Their caches fill at first use.
func New(cfg Config) (*Registry, error) {
	r := &Registry{cfg: cfg}
	r.table.Store(&table{byGVR: map[schema.GroupVersionResource]*Resource{}})
	if err := r.Add(cfg.Resources...); err != nil {
		return nil, err
	}
	return r, nil
}

// Add serves more built-in resources from now on.
func (r *Registry) Add(resources ...*api.Resource) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load()
	t := &table{byGVR: maps.Clone(old.byGVR), all: slices.Clone(old.all)}
	for _, res := range resources {
		if t.byGVR[res.GVR()] != nil {
			return fmt.Errorf("resource %s is there twice", res.GVR())
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
	_, out.built = res.New().(protoMessage)
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

func (r *Registry) storeOf(gr schema.GroupResource) *store.Store {
	if r.cfg.Apart != nil {
		if s := r.cfg.Apart(gr); s != nil {
			return s
		}
	}
	return r.cfg.Store
}

// The version of Kubernetes of which types may be deprecated.
const kubernetesMajor, kubernetesMinor = 1, 37

// BuiltIn tells whether a group has resources that are no custom ones.
func (r *Registry) BuiltIn(group string) bool {
	return slices.ContainsFunc(r.table.Load().all, func(res *Resource) bool { return res.Group == group && res.Custom == nil })
}

// Deprecation is the warning for whoever uses the resource; empty: none.
func (r *Resource) Deprecation() string {
	if r.Custom != nil {
		return r.Custom.Deprecation
	}
	return r.deprecation
}

// Lookup returns a resource, or nil.
func (r *Registry) Lookup(gvr schema.GroupVersionResource) *Resource {
	return r.table.Load().byGVR[gvr]
}

// Settled is Lookup that waits for a replacement that is under way: what its
// collection was dropped for is there when it returns.
func (r *Registry) Settled(gvr schema.GroupVersionResource) *Resource {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Lookup(gvr)
}

// Kind returns the resource of a kind, or nil.
func (r *Registry) Kind(gvk schema.GroupVersionKind) *Resource {
	for _, res := range r.table.Load().all {
		if res.GVK() == gvk {
			return res
		}
	}
	return nil
}

// Resources returns all, in the order in which they were added. The slice is
// shared; as long as nothing is added it is the same one.
func (r *Registry) Resources() []*Resource { return r.table.Load().all }

// Collection returns the objects of a resource, whatever the version, or nil.
func (r *Registry) Collection(gr schema.GroupResource) *store.Collection {
	for _, res := range r.table.Load().all {
		if res.GroupResource() == gr {
			return res.Collection
		}
	}
	return nil
}

// Store is where all objects are but those that Config.Apart puts elsewhere.
func (r *Registry) Store() *store.Store { return r.cfg.Store }

// GroupVersions returns what is served, each once, groups in the order in
// which they were added and the preferred version of each first. Groups that
// have custom resources alone come last, by name, with stable versions first.
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

// StoredResource is whose collection has the objects.
func (r *Resource) StoredResource() schema.GroupResource { return r.storage.GroupResource() }

// Stored tells whether obj can be written: it returns the form in which it is
// stored, which is obj itself for most. Its resource version is cleared.
func (r *Resource) Stored(obj api.Object) (api.Object, error) {
	if r.StoredAs != nil {
		stored, err := r.StoredAs.ToStored(obj)
		if err != nil {
			return nil, err // clients see it as it is
		}
		obj = stored
	}
	if r.Custom == nil {
		r.storage.Default(obj)
	}
	obj.SetResourceVersion("")
	return obj, nil
}

// Read returns the object of an entry as this resource serves it. It is shared:
// nobody may write to it.
func (r *Resource) Read(e *store.Entry) (api.Object, error) {
	stored, err := e.Object()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Share is Read for who keeps the object for long, such as an informer.
func (r *Resource) Share(e *store.Entry) (api.Object, error) {
	stored, err := e.Shared()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Trimmed is Share without managed fields, where that saves memory.
func (r *Resource) Trimmed(e *store.Entry) (api.Object, error) {
	stored, err := e.Trimmed()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// Peek is Read for who looks at many objects once.
func (r *Resource) Peek(e *store.Entry) (api.Object, error) {
	stored, err := e.Peek()
	if err != nil {
		return nil, err
	}
	return r.served(e, stored)
}

// stored returns the protobuf object in an entry, if it has one that says what
// decoding it would.
func (r *Resource) stored(e *store.Entry) (raw []byte, ok bool) {
	if r.StoredAs != nil || !r.built || r.StoredJSON {
		return nil, false
	}
	raw, current, err := wire.Raw(e.Bytes())
	return raw, err == nil && current
}

// FieldOf returns a field of an entry, and false when that cannot be read.
func (r *Resource) FieldOf(e *store.Entry, d api.Direct) (string, bool) {
	if raw, ok := r.stored(e); ok && len(d.Path) > 0 {
		value, err := wire.Look(raw, d.Path)
		return string(value), err == nil
	}
	obj, err := r.Peek(e)
	if err != nil {
		return "", false
	}
	return d.Of(obj), true
}

// Labelled tells whether a selector selects an entry; false when that cannot be
// read.
func (r *Resource) Labelled(e *store.Entry, by labels.Selector) bool {
	if raw, ok := r.stored(e); ok {
		return by.Matches(wire.LabelsOf(raw))
	}
	obj, err := r.Read(e)
	return err == nil && by.Matches(labels.Set(obj.GetLabels()))
}

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

// SameBytes tells whether storing obj would store just what the entry has.
func (r *Resource) SameBytes(obj api.Object, e *store.Entry) bool {
	data, err := r.storage.encode(obj)
	return err == nil && bytes.Equal(data, e.Bytes())
}

func (r *Resource) encode(obj api.Object) ([]byte, error) {
	if r.Custom != nil {
		return encodeCustom(obj)
	}
	return (&codec{resource: r.Resource, kind: r.Object}).Encode(obj)
}
