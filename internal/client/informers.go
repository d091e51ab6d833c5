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

// newInformers returns a factory whose informers are fed by source if it serves their kind, and by
// kube otherwise. An informer is created on first request.
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

// InformerFor implements informers.SharedInformerFactory.
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

// Admissionregistration implements informers.SharedInformerFactory.
func (f *fedInformers) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

// Apps implements informers.SharedInformerFactory.
func (f *fedInformers) Apps() apps.Interface { return apps.New(f, "", nil) }

// Autoscaling implements informers.SharedInformerFactory.
func (f *fedInformers) Autoscaling() autoscaling.Interface { return autoscaling.New(f, "", nil) }

// Batch implements informers.SharedInformerFactory.
func (f *fedInformers) Batch() batch.Interface { return batch.New(f, "", nil) }

// Certificates implements informers.SharedInformerFactory.
func (f *fedInformers) Certificates() certificates.Interface { return certificates.New(f, "", nil) }

// Coordination implements informers.SharedInformerFactory.
func (f *fedInformers) Coordination() coordination.Interface { return coordination.New(f, "", nil) }

// Core implements informers.SharedInformerFactory.
func (f *fedInformers) Core() core.Interface { return core.New(f, "", nil) }

// Discovery implements informers.SharedInformerFactory.
func (f *fedInformers) Discovery() discovery.Interface { return discovery.New(f, "", nil) }

// Events implements informers.SharedInformerFactory.
func (f *fedInformers) Events() events.Interface { return events.New(f, "", nil) }

// Flowcontrol implements informers.SharedInformerFactory.
func (f *fedInformers) Flowcontrol() flowcontrol.Interface { return flowcontrol.New(f, "", nil) }

// Networking implements informers.SharedInformerFactory.
func (f *fedInformers) Networking() networking.Interface { return networking.New(f, "", nil) }

// Node implements informers.SharedInformerFactory.
func (f *fedInformers) Node() node.Interface { return node.New(f, "", nil) }

// Policy implements informers.SharedInformerFactory.
func (f *fedInformers) Policy() policy.Interface { return policy.New(f, "", nil) }

// Rbac implements informers.SharedInformerFactory.
func (f *fedInformers) Rbac() rbac.Interface { return rbac.New(f, "", nil) }

// Resource implements informers.SharedInformerFactory.
func (f *fedInformers) Resource() resource.Interface { return resource.New(f, "", nil) }

// Scheduling implements informers.SharedInformerFactory.
func (f *fedInformers) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }

// Storage implements informers.SharedInformerFactory.
func (f *fedInformers) Storage() storage.Interface { return storage.New(f, "", nil) }

// Storagemigration implements informers.SharedInformerFactory.
func (f *fedInformers) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
