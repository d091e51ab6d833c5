package dns

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// byIP and byService are the names of the informers' indexes: by IP address, and by namespace and name of the
// Service.
const (
	byIP      = "ip"
	byService = "service"
)

// informerSource is the source of a zone that reads objects from informers of the cluster.
type informerSource struct {
	services, slices, namespaces cache.SharedIndexInformer
}

// newInformerSource creates the informers and indexers. It must be called before factory is started. It
// strips fields that answers do not depend on, because this process does not share the informers.
func newInformerSource(factory informers.SharedInformerFactory) (*informerSource, error) {
	c := &informerSource{
		services:   factory.Core().V1().Services().Informer(),
		slices:     factory.Discovery().V1().EndpointSlices().Informer(),
		namespaces: factory.Core().V1().Namespaces().Informer(),
	}
	if err := c.services.AddIndexers(cache.Indexers{byIP: func(obj any) ([]string, error) {
		svc := obj.(*corev1.Service)
		if isHeadless(svc) {
			return nil, nil
		}
		return svc.Spec.ClusterIPs, nil
	}}); err != nil {
		return nil, err
	}
	if err := c.slices.AddIndexers(cache.Indexers{
		byIP: func(obj any) ([]string, error) {
			var ips []string
			for _, e := range obj.(*discoveryv1.EndpointSlice).Endpoints {
				ips = append(ips, e.Addresses...)
			}
			return ips, nil
		},
		byService: func(obj any) ([]string, error) {
			slice := obj.(*discoveryv1.EndpointSlice)
			return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
		},
	}); err != nil {
		return nil, err
	}
	for _, informer := range []cache.SharedIndexInformer{c.services, c.slices, c.namespaces} {
		if err := informer.SetTransform(trim); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// trim removes managed fields and annotations from an object before an informer stores it, because DNS answers do
// not depend on them. It never returns an error.
func trim(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(nil)
		object.SetAnnotations(nil)
	}
	return obj, nil
}

// syncCheckers returns the sync checkers of all informers. Before all of them have synced, answers
// would be wrong.
func (c *informerSource) syncCheckers() []cache.DoneChecker {
	return []cache.DoneChecker{c.services.HasSyncedChecker(), c.slices.HasSyncedChecker(), c.namespaces.HasSyncedChecker()}
}

func (c *informerSource) Service(namespace, name string) *corev1.Service {
	obj, ok, err := c.services.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Service)
}

func (c *informerSource) NamespaceExists(name string) bool {
	_, ok, err := c.namespaces.GetIndexer().GetByKey(name)
	return err == nil && ok
}

func (c *informerSource) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	return indexed[discoveryv1.EndpointSlice](c.slices, byService, namespace+"/"+service)
}

func (c *informerSource) ServicesByIP(ip string) []*corev1.Service {
	return indexed[corev1.Service](c.services, byIP, ip)
}

func (c *informerSource) SlicesByIP(ip string) []*discoveryv1.EndpointSlice {
	return indexed[discoveryv1.EndpointSlice](c.slices, byIP, ip)
}

func indexed[T any](informer cache.SharedIndexInformer, index, value string) []*T {
	objs, err := informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil
	}
	out := make([]*T, len(objs))
	for i, obj := range objs {
		out[i] = obj.(*T)
	}
	return out
}
