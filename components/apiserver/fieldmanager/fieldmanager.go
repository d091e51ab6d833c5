// Package fieldmanager maintains metadata.managedFields and implements server-side apply, based on
// upstream's library.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/
package fieldmanager

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"hyperkube/internal/api"
)

// Manager is the managedfields library's field manager: it maintains the managed fields and applies configurations for
// one resource and subresource.
type Manager = managedfields.FieldManager

// Managers creates and caches the field managers of all resources. Created, Updated and Applied are faster than the
// managedfields library's methods in common cases and have the same results. It is safe for concurrent use.
type Managers struct {
	// types returns the schemas of all built-in types. The first call parses them.
	types func() (managedfields.TypeConverter, error)
	// siblings returns the other served versions of a built-in resource.
	siblings func(*api.Resource) []*api.Resource

	// unowned are the fields that no manager owns.
	unowned *fieldpath.Set
	writers writerPool

	mu      sync.RWMutex
	known   map[key]*Manager
	plans   map[*api.Resource]*plan
	filters map[key]map[fieldpath.APIVersion]fieldpath.Filter
}

// key identifies a field manager. The subresource is "" for the resource itself.
type key struct {
	resource    *api.Resource
	subresource string
}

// New returns Managers. Parsing the schema of all built-in types takes tens of milliseconds at first use, see Warm.
// served returns all resources that are served, because objects can be written in several versions of their group,
// and each entry of managed fields is compared in its own version. served may be nil if no resource has several
// versions.
func New(served func() []*api.Resource) *Managers {
	return &Managers{
		siblings: func(res *api.Resource) []*api.Resource {
			if served == nil || res.Custom != nil {
				return nil
			}
			var others []*api.Resource
			for _, other := range served() {
				if other != res && other.Group == res.Group && other.Kind == res.Kind && other.Plural == res.Plural {
					others = append(others, other)
				}
			}
			return others
		},
		types: sync.OnceValues(func() (managedfields.TypeConverter, error) {
			all, err := newWithScale(withLibraries(applyconfigurations.NewTypeConverter(scheme.Scheme)))
			if err != nil {
				return nil, err
			}
			return newUnvalidatedConverter(all), nil
		}),
		unowned: unowned(),
		known:   map[key]*Manager{},
		plans:   map[*api.Resource]*plan{},
		filters: map[key]map[fieldpath.APIVersion]fieldpath.Filter{},
	}
}

// Warm loads the schema of all built-in types, so that the first write does not need to wait for
// it. Errors occur again, and are reported, at the first write.
func (m *Managers) Warm() { _, _ = m.types() }

// Forget removes the cached field managers and filters of a custom resource that is not served anymore or has been
// replaced.
func (m *Managers) Forget(res *api.Resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.known {
		if k.resource == res {
			delete(m.known, k)
		}
	}
	for k := range m.filters {
		if k.resource == res {
			delete(m.filters, k)
		}
	}
}

// For returns the field manager of a resource at a subresource, or of the resource itself if
// subresource is "". It is created at the first call. Objects passed to the manager must have their
// kind set.
func (m *Managers) For(res *api.Resource, subresource string) (*Manager, error) {
	k := key{res, subresource}
	m.mu.RLock()
	f := m.known[k]
	m.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	filters, err := m.resetFields(res, subresource)
	if err != nil {
		return nil, err
	}
	if res.Custom != nil {
		if f, err = newCustom(res, subresource, filters); err != nil {
			return nil, fmt.Errorf("managed fields of %s: %w", res.GVR(), err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.known[k] = f
		return f, nil
	}
	types, err := m.types()
	if err != nil {
		return nil, err
	}
	kind := kindOf{res, m.siblings(res)}
	f, err = managedfields.NewDefaultFieldManager(types, kind, kind, creator{res}, res.GVK(), res.GroupVersion(), subresource, filters)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", res.GVR(), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[k] = f
	return f, nil
}

// resetFields returns filters, by version, that exclude the fields which a write to the subresource does not change,
// such as the status in a write of the main resource, and which the writer therefore does not own. It returns nil if
// all fields can be written.
func (m *Managers) resetFields(res *api.Resource, subresource string) (map[fieldpath.APIVersion]fieldpath.Filter, error) {
	k := key{res, subresource}
	m.mu.RLock()
	filters, ok := m.filters[k]
	m.mu.RUnlock()
	if ok {
		return filters, nil
	}
	for _, of := range append([]*api.Resource{res}, m.siblings(res)...) {
		filter, err := resetBy(of, subresource)
		if err != nil {
			return nil, err
		}
		if filter == nil {
			continue
		}
		if filters == nil {
			filters = map[fieldpath.APIVersion]fieldpath.Filter{}
		}
		filters[fieldpath.APIVersion(of.GroupVersion().String())] = filter
		if res.Custom != nil && subresource == "status" {
			for _, version := range res.Custom.StatusVersions {
				filters[fieldpath.APIVersion(schema.GroupVersion{Group: res.Group, Version: version}.String())] = filter
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filters[k] = filters
	return filters, nil
}

// resetBy returns the filter of resetFields for one version. It returns nil if all fields can be
// written.
func resetBy(res *api.Resource, subresource string) (fieldpath.Filter, error) {
	reset := res.Update.ResetFields
	if v, ok := res.Views[subresource]; ok && subresource != "" {
		reset = v.ResetFields
	}
	if len(reset) == 0 {
		return nil, nil
	}
	set := fieldpath.NewSet()
	for _, p := range reset {
		parts := make([]any, len(p))
		for i, name := range p {
			parts[i] = name
		}
		path, err := fieldpath.MakePath(parts...)
		if err != nil {
			return nil, fmt.Errorf("reset fields of %s: %w", res.GVR(), err)
		}
		set.Insert(path)
	}
	return fieldpath.NewExcludeSetFilter(set), nil
}

// kindOf converts, defaults and creates objects of one built-in kind. The managedfields library calls it when it
// merges objects and compares managed fields.
type kindOf struct {
	*api.Resource

	// others are the other served versions of the kind.
	others []*api.Resource
}

// version returns the resource for a version of the kind, or nil if that version is not served.
func (k kindOf) version(gvk schema.GroupVersionKind) *api.Resource {
	if gvk == k.GVK() {
		return k.Resource
	}
	for _, other := range k.others {
		if other.GVK() == gvk {
			return other
		}
	}
	return nil
}

// ConvertToVersion implements runtime.ObjectConvertor. It converts the unstructured result of an
// apply to the Go type, and objects to another version of the kind, through the stored version. It
// returns objects of the desired version unchanged.
func (k kindOf) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	gvk, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{k.GVK()})
	target := k.version(gvk)
	if !ok || target == nil {
		return nil, runtime.NewNotRegisteredErrForKind("API server", gvk)
	}
	source := k.Resource
	if of := k.version(in.GetObjectKind().GroupVersionKind()); of != nil {
		source = of
	}
	if u, ok := in.(runtime.Unstructured); ok {
		out := source.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), out); err != nil {
			return nil, fmt.Errorf("unable to convert unstructured object to %s: %w", source.GVK(), err)
		}
		out.GetObjectKind().SetGroupVersionKind(source.GVK())
		in = out
	}
	if source == target {
		return in, nil
	}
	obj, ok := in.(api.Object)
	if !ok {
		return nil, fmt.Errorf("converting a %s: it is a %T", k.Kind, in)
	}
	var err error
	if source.StoredAs != nil {
		if obj, err = source.StoredAs.ToStored(obj); err != nil {
			return nil, fmt.Errorf("converting a %s: %w", source.GVK(), err)
		}
	}
	if target.StoredAs != nil {
		if obj, err = target.StoredAs.FromStored(obj); err != nil {
			return nil, fmt.Errorf("converting a %s to %s: %w", source.GVK(), target.GroupVersion(), err)
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(target.GVK())
	return obj, nil
}

// Convert implements runtime.ObjectConvertor. It always returns an error, because field managers do
// not call it.
func (k kindOf) Convert(in, out, context any) error {
	return fmt.Errorf("converting %T to %T: not needed", in, out)
}

// ConvertFieldLabel implements runtime.ObjectConvertor. Field managers do not call it.
func (k kindOf) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default implements runtime.ObjectDefaulter: it sets the default values of missing fields after an
// apply.
func (k kindOf) Default(in runtime.Object) {
	if obj, ok := in.(api.Object); ok {
		k.Resource.Default(obj)
	}
}

// creator creates empty objects of one resource with their kind set, for the managedfields library.
type creator struct{ resource *api.Resource }

// New implements runtime.ObjectCreater. It returns an empty object of the resource, whatever kind
// is requested.
func (c creator) New(schema.GroupVersionKind) (runtime.Object, error) {
	obj := c.resource.New()
	obj.GetObjectKind().SetGroupVersionKind(c.resource.GVK())
	return obj, nil
}

// Name returns the name of the field manager for a write: the request parameter fieldManager if it is set, otherwise
// the part of the user agent before the first slash, such as "kubectl", without unprintable characters and truncated
// to the maximum length.
func Name(fieldManager, userAgent string) string {
	if fieldManager != "" {
		return fieldManager
	}
	word, _, _ := strings.Cut(userAgent, "/")
	clean := true
	for _, r := range word {
		if !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean && len(word) <= metav1validation.FieldManagerMaxLength {
		return word
	}
	var b strings.Builder
	for _, r := range word {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > metav1validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// SameButTimes reports whether two lists of managed fields are equal if the times of their entries
// are ignored.
func SameButTimes(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Manager != y.Manager || x.Operation != y.Operation || x.APIVersion != y.APIVersion ||
			x.FieldsType != y.FieldsType || x.Subresource != y.Subresource {
			return false
		}
		if (x.FieldsV1 == nil) != (y.FieldsV1 == nil) {
			return false
		}
		if x.FieldsV1 != nil && !x.FieldsV1.Equal(*y.FieldsV1) {
			return false
		}
	}
	return true
}

// SameTimes reports whether two lists of managed fields have the same length and the same times.
func SameTimes(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool { return x.Time.Equal(y.Time) })
}
