// Package servicepods tells the controllers that write where the pods of Services
// are which of them a pod's change concerns.
package servicepods

import (
	"k8s.io/client-go/tools/cache"
	sliceutil "k8s.io/endpointslice/util"

	"hyperkube/components/controllers/internal/control"
)

// Watch has loop work on the Services that select a pod, or have selected it, when
// it changes in what endpoints tell of it.
func Watch(loop *control.Loop, env control.Env) error {
	services := env.Informers.Core().V1().Services().Lister()
	changed := func(old, cur any) {
		change := sliceutil.GetPodUpdateProjectionKey(old, cur)
		if change == nil {
			return
		}
		keys, err := sliceutil.GetServicesToUpdate(services, change)
		if err != nil {
			env.Log.Error("services of a pod cannot be listed", "error", err)
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
