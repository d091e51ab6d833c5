package dynamic

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
)

// mapper is a meta.RESTMapper of what is served now. It is asked when a kind of
// parameters comes into use, so it keeps nothing.
type mapper struct{ registry *registry.Registry }

func (m mapper) now() *meta.DefaultRESTMapper {
	out := meta.NewDefaultRESTMapper(nil)
	for _, r := range m.registry.Resources() {
		var scope meta.RESTScope = meta.RESTScopeRoot
		if r.Scope {
			scope = meta.RESTScopeNamespace
		}
		out.AddSpecific(r.GVK(), r.GVR(), r.GroupVersion().WithResource(r.Singular), scope)
	}
	return out
}

// KindFor as meta.RESTMapper.
func (m mapper) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.now().KindFor(r)
}

// KindsFor as meta.RESTMapper.
func (m mapper) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.now().KindsFor(r)
}

// ResourceFor as meta.RESTMapper.
func (m mapper) ResourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.now().ResourceFor(r)
}

// ResourcesFor as meta.RESTMapper.
func (m mapper) ResourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.now().ResourcesFor(r)
}

// RESTMapping as meta.RESTMapper.
func (m mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.now().RESTMapping(gk, versions...)
}

// RESTMappings as meta.RESTMapper.
func (m mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.now().RESTMappings(gk, versions...)
}

// ResourceSingularizer as meta.RESTMapper.
func (m mapper) ResourceSingularizer(resource string) (string, error) {
	return m.now().ResourceSingularizer(resource)
}
