package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/garbagecollector"
	"hyperkube/internal/client"
)

// SharedInformers makes the garbage collector's informers for a process whose
// informers are fed from the watch cache: those of built-in resources are
// clients.Informers' own, which cost nothing more there; only the rest, custom
// resources, is watched by the metadata API. Informers that it adds to
// clients.Informers are started with running, which is the context of whoever
// started the others.
func SharedInformers(running context.Context, clients *client.Clients) garbagecollector.Informer {
	return func(ctx context.Context, gvr schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		if generic, err := clients.Informers.ForResource(gvr); err == nil {
			i := generic.Informer()
			clients.Informers.StartWithContext(running)
			return i, nil
		}
		i := metadatainformer.NewFilteredMetadataInformer(clients.Metadata, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
		go i.RunWithContext(ctx)
		return i, nil
	}
}
