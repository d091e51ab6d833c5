package dynamic

import (
	"context"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/apiserver/informed"
)

// services finds where services answer: at one of their endpoints, so that it
// does not depend on a service proxy on the API server's machine, and else, as
// for services without a selector's endpoints, at their cluster address.
type services struct {
	lister corelisters.ServiceLister
	slices proxy.EndpointSliceGetter
	gate   *informed.Gate
}

func newServices(f informers.SharedInformerFactory) *services {
	svc, slices := f.Core().V1().Services(), f.Discovery().V1().EndpointSlices()
	s := &services{lister: svc.Lister(), gate: informed.NewGate(svc.Informer().HasSyncedChecker(), slices.Informer().HasSyncedChecker())}
	// The error is about a lister that is nil.
	s.slices, _ = proxy.NewEndpointSliceListerGetter(slices.Lister())
	return s
}

// ResolveEndpoint as webhook.ServiceResolver.
func (s *services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	// The interface has no context; the gate's own patience bounds this.
	if err := s.gate.Wait(context.Background()); err != nil {
		return nil, err
	}
	if u, err := proxy.ResolveEndpoint(s.lister, s.slices, namespace, name, port); err == nil {
		return u, nil
	}
	return proxy.ResolveCluster(s.lister, namespace, name, port)
}
