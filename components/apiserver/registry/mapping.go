package registry

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RESTMapping returns the resource of a kind, in the first of versions that is served, or in any version if none is
// specified. Reviews, and custom resources whose definition is not established, are ignored. The error is a
// meta.NoKindMatchError if the kind is not served. It replaces discovery for clients in this process.
func (r *Registry) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	var found *Resource
	position := len(versions)
	for _, res := range r.Resources() {
		if res.GVK().GroupKind() != gk || res.Review || res.Custom != nil && res.Custom.NotEstablished {
			continue
		}
		if len(versions) == 0 {
			found = res
			break
		}
		if i := slices.Index(versions, res.GroupVersion().Version); i >= 0 && i < position {
			found, position = res, i
		}
	}
	if found == nil {
		return nil, &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: versions}
	}
	mapping := &meta.RESTMapping{
		Resource: found.GroupVersion().WithResource(found.Plural), GroupVersionKind: found.GVK(), Scope: meta.RESTScopeRoot,
	}
	if found.Scope {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return mapping, nil
}
