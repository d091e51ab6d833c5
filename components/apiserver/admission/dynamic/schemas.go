package dynamic

import (
	"sync/atomic"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
)

// schemas is a client whose list of OpenAPI schemas has already been requested when the admission plugin of mutating
// policies requests it.
//
// The plugin requests the list in the background and rejects objects with 503 until it has the list. Upstream's API
// server creates the plugin when it starts, long before the first policy. This API server creates it when the first
// policy is bound, and the client of that policy may create an object immediately.
type schemas struct {
	kubernetes.Interface
	client *prefetched
}

// newSchemas returns a schemas client, after it has requested the list of schemas through kube. If this request fails,
// the plugin's first request for the list is sent to the API server.
func newSchemas(kube kubernetes.Interface) *schemas {
	c := &prefetched{Client: kube.Discovery().OpenAPIV3(), requested: make(chan struct{})}
	if paths, err := c.Client.Paths(); err == nil {
		c.paths = paths
	}
	return &schemas{kube, c}
}

// Discovery implements kubernetes.Interface. It returns the discovery client of kube, whose OpenAPI client answers the
// first request for the list of schemas from memory.
func (s *schemas) Discovery() discovery.DiscoveryInterfaces {
	return schemaDiscovery{s.Interface.Discovery(), s.client}
}

// schemaDiscovery is the part of the discovery client that policies use for the OpenAPI schemas of kinds.
type schemaDiscovery struct {
	discovery.DiscoveryInterfaces
	client *prefetched
}

// OpenAPIV3 implements discovery.DiscoveryInterface. It returns the client that has the list of schemas in memory.
func (d schemaDiscovery) OpenAPIV3() openapi.Client { return d.client }

// prefetched is an OpenAPI client that answers the first request from memory. It is safe for
// concurrent use.
type prefetched struct {
	openapi.Client
	paths map[string]openapi.GroupVersion // nil if they could not be requested
	used  atomic.Bool
	// requested is closed at the first request.
	requested chan struct{}
}

// Paths implements openapi.Client. The first call returns the list in memory, if requesting it has succeeded, and
// closes p.requested. Later calls send a request.
func (p *prefetched) Paths() (map[string]openapi.GroupVersion, error) {
	if p.used.CompareAndSwap(false, true) {
		close(p.requested)
		if p.paths != nil {
			return p.paths, nil
		}
	}
	return p.Client.Paths()
}
