package dynamic

import (
	"context"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/apiserver/syncgate"
)

// services finds the address of a webhook's Service: one of its endpoints, so that webhooks do not
// depend on a service proxy on the API server's machine. If there is none, as for Services without
// a selector, it uses the cluster IP.
type services struct {
	lister corelisters.ServiceLister
	slices proxy.EndpointSliceGetter
	gate   *syncgate.Gate
}

// newServices returns a services that reads informers of f, which the caller starts afterwards.
func newServices(f informers.SharedInformerFactory) *services {
	svc, slices := f.Core().V1().Services(), f.Discovery().V1().EndpointSlices()
	s := &services{lister: svc.Lister(), gate: syncgate.NewGate(svc.Informer().HasSyncedChecker(), slices.Informer().HasSyncedChecker())}
	// The error only reports a nil lister.
	s.slices, _ = proxy.NewEndpointSliceListerGetter(slices.Lister())
	return s
}

// ResolveEndpoint implements webhook.ServiceResolver. It returns the URL for a port of a Service, at an endpoint or
// otherwise at the cluster IP. It first waits until the informers have synced, with the timeout of the gate, and
// returns an error if they have not.
func (s *services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	// The interface has no context. The gate's timeout limits the wait.
	if err := s.gate.Wait(context.Background()); err != nil {
		return nil, err
	}
	if u, err := proxy.ResolveEndpoint(s.lister, s.slices, namespace, name, port); err == nil {
		return u, nil
	}
	return proxy.ResolveCluster(s.lister, namespace, name, port)
}
