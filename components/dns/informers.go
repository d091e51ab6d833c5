package dns

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Names of the indexes.
const (
	byIP      = "ip"
	byService = "service"
)

// cluster is the source that informers keep.
type cluster struct {
	services, slices, namespaces cache.SharedIndexInformer
}

// newCluster asks factory for what is needed; it must not have been started.
// What answers do not depend on is dropped from memory, for this process has
// the informers to itself.
func newCluster(factory informers.SharedInformerFactory) (*cluster, error) {
	c := &cluster{
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

// trim drops what answers do not depend on.
func trim(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(nil)
		object.SetAnnotations(nil)
	}
	return obj, nil
}

// synced are what must be true before answers are right.
func (c *cluster) synced() []cache.DoneChecker {
	return []cache.DoneChecker{c.services.HasSyncedChecker(), c.slices.HasSyncedChecker(), c.namespaces.HasSyncedChecker()}
}

func (c *cluster) Service(namespace, name string) *corev1.Service {
	obj, ok, err := c.services.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Service)
}

func (c *cluster) NamespaceExists(name string) bool {
	_, ok, err := c.namespaces.GetIndexer().GetByKey(name)
	return err == nil && ok
}

func (c *cluster) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	return indexed[discoveryv1.EndpointSlice](c.slices, byService, namespace+"/"+service)
}

func (c *cluster) ServicesByIP(ip string) []*corev1.Service {
	return indexed[corev1.Service](c.services, byIP, ip)
}

func (c *cluster) SlicesByIP(ip string) []*discoveryv1.EndpointSlice {
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
