package controllers

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/garbagecollector"
	"hyperkube/internal/client"
)

// SharedInformers returns a function that returns the garbage collector's informer of a resource, for a process whose
// informers read from the API server's watch cache. For built-in kinds it returns the informers of clients.Informers,
// and informers of custom resources read from the watch cache too; both need little memory. Only resources of
// aggregated API servers are watched with the metadata API. Informers that it adds to clients.Informers run until
// running is done, which must be the context of the other informers.
func SharedInformers(running context.Context, clients *client.Clients) garbagecollector.Informer {
	return func(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			if i := fromMemory(clients, kind); i != nil {
				go i.RunWithContext(ctx)
				return i, nil
			}
			i := metadatainformer.NewFilteredMetadataInformer(clients.Metadata, gvr, metav1.NamespaceAll, 0,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
			go i.RunWithContext(ctx)
			return i, nil
		}
		// Used only for kinds that are not in the watch cache.
		plain, err := listWatch(clients.REST, gvr)
		if err != nil {
			return nil, err
		}
		i := clients.Informers.InformerFor(obj, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(plain, obj, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		})
		clients.Informers.StartWithContext(running)
		return i, nil
	}
}

// fromMemory returns an informer that reads objects of a kind without a client-go type from the watch cache. It returns
// nil if the watch cache is not in this process or does not contain the kind.
func fromMemory(clients *client.Clients, kind schema.GroupVersionKind) cache.SharedIndexInformer {
	if clients.Source == nil {
		return nil
	}
	lw, ok := clients.Source.ListWatch(kind)
	if !ok {
		return nil
	}
	return cache.NewSharedIndexInformerWithOptions(lw, nil, cache.SharedIndexInformerOptions{
		ObjectDescription: kind.String(),
		Indexers:          cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	})
}

// listWatch returns a list and watch of a built-in resource with a REST client, for kinds that are not in the watch
// cache.
func listWatch(config *rest.Config, gvr schema.GroupVersionResource) (cache.ListerWatcher, error) {
	rc := rest.CopyConfig(config)
	gv := gvr.GroupVersion()
	rc.GroupVersion = &gv
	rc.APIPath = "/apis"
	if gv.Group == "" {
		rc.APIPath = "/api"
	}
	rc.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	c, err := rest.RESTClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("creating client of %s: %w", gvr, err)
	}
	return cache.NewListWatchFromClient(c, gvr.Resource, metav1.NamespaceAll, fields.Everything()), nil
}
