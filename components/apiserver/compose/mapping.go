package compose

import (
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RESTMapping returns the resource of a kind, of this server or of an aggregated one, in one of the versions, or in
// any if none is given. It prefers this server's. The error is a meta.NoKindMatchError if the kind is not served. It
// replaces discovery for clients in this process.
func (s *Server) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := s.server.Registry().RESTMapping(gk, versions...)
	if err == nil {
		return mapping, nil
	}
	for _, v := range s.aggregator.Versions() {
		if v.Group != gk.Group || len(versions) > 0 && !slices.Contains(versions, v.Discovery.Version) {
			continue
		}
		gv := schema.GroupVersion{Group: v.Group, Version: v.Discovery.Version}
		for _, r := range v.Discovery.Resources {
			if r.ResponseKind == nil || r.ResponseKind.Kind != gk.Kind {
				continue
			}
			scope := meta.RESTScope(meta.RESTScopeRoot)
			if r.Scope == apidiscoveryv2.ScopeNamespace {
				scope = meta.RESTScopeNamespace
			}
			return &meta.RESTMapping{Resource: gv.WithResource(r.Resource), GroupVersionKind: gv.WithKind(gk.Kind), Scope: scope}, nil
		}
	}
	return nil, err
}
