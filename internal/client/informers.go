package client

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// newInformers returns an informer factory. Its informers get their objects from source, the watch
// cache in this process, if source serves their kind, and otherwise by requests of kube. source is
// nil if the API server runs in another process.
func newInformers(kube kubernetes.Interface, source Source) informers.SharedInformerFactory {
	inner := informers.NewSharedInformerFactory(kube, 0)
	if source == nil {
		return inner
	}
	return &fedInformers{SharedInformerFactory: inner, source: source}
}

// fedInformers is an informer factory that feeds its informers from source. It overrides the typed
// accessors so that they call its InformerFor, because the accessors of the embedded factory would
// bypass source.
type fedInformers struct {
	informers.SharedInformerFactory
	source Source
}

// InformerFor implements informers.SharedInformerFactory. It returns the informer of the type of obj, and creates it
// on first use. A new informer lists and watches source if that serves the kind of obj. Otherwise it is created by
// fallback and sends requests to the API server.
func (f *fedInformers) InformerFor(obj runtime.Object, fallback internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(obj, func(kube kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil || len(kinds) == 0 {
			return fallback(kube, resync)
		}
		lw, ok := f.source.ListWatch(kinds[0])
		if !ok {
			return fallback(kube, resync)
		}
		return cache.NewSharedIndexInformerWithOptions(lw, obj, cache.SharedIndexInformerOptions{
			ObjectDescription: kinds[0].Kind,
			Indexers:          cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		})
	})
}

// Admissionregistration returns the informers of the group admissionregistration.k8s.io, fed from
// source.
func (f *fedInformers) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

// Apps returns the informers of the group apps, fed from source.
func (f *fedInformers) Apps() apps.Interface { return apps.New(f, "", nil) }

// Autoscaling returns the informers of the group autoscaling, fed from source.
func (f *fedInformers) Autoscaling() autoscaling.Interface { return autoscaling.New(f, "", nil) }

// Batch returns the informers of the group batch, fed from source.
func (f *fedInformers) Batch() batch.Interface { return batch.New(f, "", nil) }

// Certificates returns the informers of the group certificates.k8s.io, fed from source.
func (f *fedInformers) Certificates() certificates.Interface { return certificates.New(f, "", nil) }

// Coordination returns the informers of the group coordination.k8s.io, fed from source.
func (f *fedInformers) Coordination() coordination.Interface { return coordination.New(f, "", nil) }

// Core returns the informers of the core group (pods, services, …), fed from source.
func (f *fedInformers) Core() core.Interface { return core.New(f, "", nil) }

// Discovery returns the informers of the group discovery.k8s.io (EndpointSlices), fed from source.
func (f *fedInformers) Discovery() discovery.Interface { return discovery.New(f, "", nil) }

// Events returns the informers of the group events.k8s.io, fed from source.
func (f *fedInformers) Events() events.Interface { return events.New(f, "", nil) }

// Flowcontrol returns the informers of the group flowcontrol.apiserver.k8s.io, fed from source.
func (f *fedInformers) Flowcontrol() flowcontrol.Interface { return flowcontrol.New(f, "", nil) }

// Networking returns the informers of the group networking.k8s.io, fed from source.
func (f *fedInformers) Networking() networking.Interface { return networking.New(f, "", nil) }

// Node returns the informers of the group node.k8s.io (RuntimeClasses), fed from source.
func (f *fedInformers) Node() node.Interface { return node.New(f, "", nil) }

// Policy returns the informers of the group policy, fed from source.
func (f *fedInformers) Policy() policy.Interface { return policy.New(f, "", nil) }

// Rbac returns the informers of the group rbac.authorization.k8s.io, fed from source.
func (f *fedInformers) Rbac() rbac.Interface { return rbac.New(f, "", nil) }

// Resource returns the informers of the group resource.k8s.io, fed from source.
func (f *fedInformers) Resource() resource.Interface { return resource.New(f, "", nil) }

// Scheduling returns the informers of the group scheduling.k8s.io, fed from source.
func (f *fedInformers) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }

// Storage returns the informers of the group storage.k8s.io, fed from source.
func (f *fedInformers) Storage() storage.Interface { return storage.New(f, "", nil) }

// Storagemigration returns the informers of the group storagemigration.k8s.io, fed from source.
func (f *fedInformers) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
