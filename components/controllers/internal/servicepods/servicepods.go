// Package servicepods determines which Services are affected by a change of a pod, for the
// controllers that write endpoints.
package servicepods

import (
	"k8s.io/client-go/tools/cache"
	sliceutil "k8s.io/endpointslice/util"

	"hyperkube/components/controllers/internal/control"
)

// Watch adds a handler to the pod informer that enqueues Services in loop: those whose endpoints depend on a pod that
// was added, deleted, or changed in a property that endpoints contain. If the labels of a pod change, the Services that
// selected it before are enqueued too.
func Watch(loop *control.Loop, env control.Env) error {
	services := env.Informers.Core().V1().Services().Lister()
	changed := func(old, cur any) {
		change := sliceutil.GetPodUpdateProjectionKey(old, cur)
		if change == nil {
			return
		}
		keys, err := sliceutil.GetServicesToUpdate(services, change)
		if err != nil {
			env.Log.Error("listing Services that select a changed pod failed; their endpoints do not contain this change until a pod or the Service changes again", "namespace", change.Namespace, "podLabels", change.Labels, "err", err)
			return
		}
		for key := range keys {
			loop.Add(key)
		}
	}
	return loop.Watch(env.Informers.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, obj) },
		UpdateFunc: changed,
		DeleteFunc: func(obj any) { changed(nil, obj) },
	})
}
