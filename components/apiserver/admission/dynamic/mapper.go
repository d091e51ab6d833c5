package dynamic

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
)

// mapper is a meta.RESTMapper of the currently served resources. It is used only when a parameter
// kind is first used, so it caches nothing.
type mapper struct{ registry *registry.Registry }

func (m mapper) current() *meta.DefaultRESTMapper {
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

// KindFor implements meta.RESTMapper.
func (m mapper) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.current().KindFor(r)
}

// KindsFor implements meta.RESTMapper.
func (m mapper) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.current().KindsFor(r)
}

// ResourceFor implements meta.RESTMapper.
func (m mapper) ResourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.current().ResourceFor(r)
}

// ResourcesFor implements meta.RESTMapper.
func (m mapper) ResourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.current().ResourcesFor(r)
}

// RESTMapping implements meta.RESTMapper.
func (m mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.current().RESTMapping(gk, versions...)
}

// RESTMappings implements meta.RESTMapper.
func (m mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.current().RESTMappings(gk, versions...)
}

// ResourceSingularizer implements meta.RESTMapper.
func (m mapper) ResourceSingularizer(resource string) (string, error) {
	return m.current().ResourceSingularizer(resource)
}
