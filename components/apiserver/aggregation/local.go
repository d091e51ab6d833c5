package aggregation

import (
	"fmt"
	"net/http"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/discovery"
)

// LocalAPI is a group and version that a component in this process serves, outside the registry of
// resources. It is served while an APIService without spec.service exists for it. An APIService with
// spec.service replaces it by another server, and a deleted APIService disables it.
type LocalAPI struct {
	GroupVersion schema.GroupVersion
	// Resources are the resources for discovery, as in an APIResourceList.
	Resources []metav1.APIResource
	// Handler serves all paths below /apis/GROUP/VERSION. Its requests are authenticated, authorized
	// and audited.
	Handler http.Handler
	// Served, unless nil, is called with whether the API is served, after every change of APIServices. It must not block.
	Served func(bool)
}

// localAPI is a LocalAPI with its discovery document.
type localAPI struct {
	handler http.Handler
	served  func(bool) // may be nil
	version apidiscoveryv2.APIVersionDiscovery
}

// newLocalAPIs converts the configured APIs. It returns an error if one is incomplete or has invalid
// resources.
func newLocalAPIs(apis []LocalAPI) (map[schema.GroupVersion]*localAPI, error) {
	out := make(map[schema.GroupVersion]*localAPI, len(apis))
	for _, api := range apis {
		if api.GroupVersion.Empty() || api.Handler == nil {
			return nil, fmt.Errorf("local API %s requires a group, a version and a handler", api.GroupVersion)
		}
		version, err := convert(api.GroupVersion, api.Resources)
		if err != nil {
			return nil, fmt.Errorf("local API %s: %w", api.GroupVersion, err)
		}
		version.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
		out[api.GroupVersion] = &localAPI{handler: api.Handler, served: api.Served, version: *version}
	}
	return out, nil
}

// localVersions returns the discovery documents of the local APIs that are served now.
func (s *snapshot) localVersions() []discovery.Version {
	var out []discovery.Version
	for gv, l := range s.local {
		out = append(out, discovery.Version{Group: gv.Group, Discovery: l.version})
	}
	return out
}
