package dynamic

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
)

// mapper is a meta.RESTMapper of the resources that the registry serves at the time of a call.
// Policies use it to find the resource of their parameter kind. That is rare, so it caches nothing.
type mapper struct{ registry *registry.Registry }

// current returns a mapper of the resources that are served now.
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

// KindFor returns the kind of a resource, which may lack the group or version.
func (m mapper) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.current().KindFor(r)
}

// KindsFor returns all kinds of a resource, which may lack the group or version.
func (m mapper) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.current().KindsFor(r)
}

// ResourceFor returns the complete resource for a resource that may lack the group or version.
func (m mapper) ResourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.current().ResourceFor(r)
}

// ResourcesFor returns all complete resources for a resource that may lack the group or version.
func (m mapper) ResourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.current().ResourcesFor(r)
}

// RESTMapping returns the resource and scope of a kind in the first of the versions that is served.
func (m mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.current().RESTMapping(gk, versions...)
}

// RESTMappings returns the resources and scopes of a kind in all served versions, or in the given
// ones.
func (m mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.current().RESTMappings(gk, versions...)
}

// ResourceSingularizer returns the singular name of a resource.
func (m mapper) ResourceSingularizer(resource string) (string, error) {
	return m.current().ResourceSingularizer(resource)
}
