package customresource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/version"

	"hyperkube/internal/api"
)

// definition is one state of a CustomResourceDefinition (its spec and accepted names), with what is
// needed to serve its custom resources. Expensive parts, such as compiled schemas, are created at
// first use. A changed CustomResourceDefinition results in a new definition. It is immutable and
// safe for concurrent use.
type definition struct {
	crd   *apiextensionsv1.CustomResourceDefinition // shared
	names apiextensionsv1.CustomResourceDefinitionNames
	// storage is the name of the version in which objects are stored in etcd.
	storage  string
	versions map[string]*kindVersion
	// convert converts an object between versions. It may modify its argument.
	convert converter
	// types returns the schemas of all versions for server-side apply.
	types func() (managedfields.TypeConverter, error)
	// equivalents maps each version's resource to those of all versions.
	equivalents func() runtime.EquivalentResourceMapper
}

// kindVersion is one version of a definition: its spec, and its schema and validators, which are
// compiled at first use.
type kindVersion struct {
	*apiextensionsv1.CustomResourceDefinitionVersion
	of  *definition
	gvk schema.GroupVersionKind
	// schema returns the compiled schema, which is needed for reads and writes.
	schema func() (*compiled, error)
	// checks returns the validators that writes need.
	checks func() (*checks, error)
}

// newDefinition returns the definition for crd, whose names must have been accepted at least once.
// It returns an error if it has no accepted names or no storage version. remote creates the
// converter that calls crd's conversion webhook; it is called at the first conversion.
func newDefinition(crd *apiextensionsv1.CustomResourceDefinition, remote func(*apiextensionsv1.CustomResourceDefinition) (converter, error)) (*definition, error) {
	d := &definition{crd: crd, names: crd.Status.AcceptedNames, versions: map[string]*kindVersion{}}
	if d.names.Plural == "" || d.names.Singular == "" || d.names.Kind == "" || d.names.ListKind == "" {
		return nil, fmt.Errorf("definition %s has no accepted names", crd.Name)
	}
	for i := range crd.Spec.Versions {
		spec := &crd.Spec.Versions[i]
		v := &kindVersion{
			CustomResourceDefinitionVersion: spec, of: d,
			gvk: schema.GroupVersionKind{Group: crd.Spec.Group, Version: spec.Name, Kind: d.names.Kind},
		}
		v.schema = sync.OnceValues(v.compile)
		v.checks = sync.OnceValues(v.compileChecks)
		d.versions[spec.Name] = v
		if spec.Storage {
			d.storage = spec.Name
		}
	}
	if d.storage == "" {
		return nil, fmt.Errorf("definition %s has no storage version", crd.Name)
	}
	d.convert = convertNone
	if c := crd.Spec.Conversion; c != nil && c.Strategy == apiextensionsv1.WebhookConverter {
		// The client is created at the first conversion.
		make := sync.OnceValues(func() (converter, error) { return remote(crd) })
		d.convert = func(obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
			convert, err := make()
			if err != nil {
				return nil, err
			}
			return convert(obj, to)
		}
	}
	d.types = sync.OnceValues(d.makeTypes)
	d.equivalents = sync.OnceValue(d.makeEquivalents)
	return d, nil
}

// resources returns an api.Resource for each served version, the preferred version first. terminating means that the
// definition is being deleted, so that no new objects can be created. early means that discovery must not include the
// resources yet, because the definition's status has not been written (see Server.sync).
func (d *definition) resources(terminating, early bool) []*api.Resource {
	var out []*api.Resource
	for _, v := range d.versions {
		if v.Served {
			out = append(out, v.resource(terminating, early))
		}
	}
	slices.SortFunc(out, func(a, b *api.Resource) int {
		return cmp.Or(version.CompareKubeAwareVersionStrings(b.Version, a.Version), strings.Compare(a.Version, b.Version))
	})
	return out
}

// makeEquivalents returns a mapper by which the resources of all versions are equivalent, because they serve the same
// objects. Webhooks and policies with the match policy Equivalent use it.
func (d *definition) makeEquivalents() runtime.EquivalentResourceMapper {
	all := runtime.NewEquivalentResourceRegistry()
	for _, v := range d.versions {
		gvr := v.gvk.GroupVersion().WithResource(d.names.Plural)
		all.RegisterKindFor(gvr, "", v.gvk)
		if v.hasStatus() {
			all.RegisterKindFor(gvr, "status", v.gvk)
		}
		if v.Subresources != nil && v.Subresources.Scale != nil {
			all.RegisterKindFor(gvr, "scale", autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
		}
	}
	return all
}

// withStatus returns the names of the versions that have a status subresource, in the order of the
// definition.
func (d *definition) withStatus() []string {
	var names []string
	for i := range d.crd.Spec.Versions {
		if v := d.versions[d.crd.Spec.Versions[i].Name]; v.hasStatus() {
			names = append(names, v.Name)
		}
	}
	return names
}

// remote reports whether conversions between versions call a webhook.
func (d *definition) remote() bool {
	c := d.crd.Spec.Conversion
	return c != nil && c.Strategy == apiextensionsv1.WebhookConverter
}

// resource returns the api.Resource with which the registry serves this version. terminating and early are described
// at resources.
func (v *kindVersion) resource(terminating, early bool) *api.Resource {
	d := v.of
	res := &api.Resource{
		Names: api.Names{
			Kind: d.names.Kind, ListKind: d.names.ListKind, Plural: d.names.Plural, Singular: d.names.Singular,
			ShortNames: d.names.ShortNames, Categories: d.names.Categories,
		},
		Group: v.gvk.Group, Version: v.gvk.Version,
		Scope:       d.crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		Verbs:       api.AllVerbs,
		StoragePath: v.gvk.Group + "/" + d.names.Plural,
		New:         func() api.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		NewList:     func() runtime.Object { return &unstructured.UnstructuredList{} },

		Default:       v.setDefaults,
		PrepareCreate: v.prepareCreate,
		Validate:      v.validateCreate,
		Warnings:      v.warnings,
		Update: api.Update{
			Prepare:  v.prepareUpdate,
			Validate: v.validateUpdate,
		},
		StoredAs: &api.StoredAs{
			GroupVersionKind: schema.GroupVersionKind{Group: v.gvk.Group, Version: d.storage, Kind: d.names.Kind},
			ToStored:         v.toStored,
			FromStored:       v.fromStored,
		},
		Custom: &api.Custom{
			State:          fmt.Sprintf("%s %d %v %t", d.crd.UID, d.crd.Generation, d.names, terminating),
			Terminating:    terminating,
			NotEstablished: early,
			Deprecation:    v.deprecation(),
			Coerce: func(obj api.Object, report bool) ([]string, error) {
				return d.coerce(obj, coerceOptions{report: report})
			},
			Load:            d.load,
			Convert:         d.convertTo,
			ConvertLossless: d.convertRaw,
			Remote:          d.remote(),
			AtomicMaps:      sync.OnceValue(func() bool { return v.Schema != nil && hasAtomicMap(v.Schema.OpenAPIV3Schema) }),

			StatusVersions: d.withStatus(),

			Equivalents: d.equivalents,
			Types:       d.types,
			Models:      v.models,
		},
	}
	res.Fields, res.FieldNames = v.fields(bool(res.Scope))
	res.Columns, res.Row = v.table()
	if sub := v.Subresources; sub != nil && sub.Status != nil {
		res.Update.ResetFields = [][]string{{"status"}}
		res.Views = map[string]api.Update{"status": {
			Verbs:       []string{"get", "patch", "update"},
			Prepare:     prepareStatus,
			Validate:    v.validateStatus,
			ResetFields: [][]string{{"metadata"}, {"spec"}},
		}}
	}
	if sub := v.Subresources; sub != nil && sub.Scale != nil {
		res.Scale = v.scale()
	}
	return res
}

// deprecation returns the warning that clients get when they use a deprecated version: the text in the definition, or
// by default one that names the newest served version that is not deprecated. It returns "" if the version is not
// deprecated.
func (v *kindVersion) deprecation() string {
	if !v.Deprecated {
		return ""
	}
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", v.gvk.Group, v.gvk.Version, v.of.crd.Spec.Names.Kind)
	best := ""
	for _, other := range v.of.crd.Spec.Versions {
		if other.Served && !other.Deprecated && version.CompareKubeAwareVersionStrings(v.gvk.Version, other.Name) < 0 &&
			(best == "" || version.CompareKubeAwareVersionStrings(best, other.Name) < 0) {
			best = other.Name
		}
	}
	if best != "" {
		text += fmt.Sprintf("; use %s/%s %s", v.gvk.Group, best, v.of.crd.Spec.Names.Kind)
	}
	return text
}

// unstructuredOf returns obj as an unstructured object. The result is never nil: for another type, which does not
// happen for custom resources, it is an empty object.
func unstructuredOf(obj api.Object) *unstructured.Unstructured {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		// Resources of this package create no other objects.
		return &unstructured.Unstructured{Object: map[string]any{}}
	}
	return u
}
