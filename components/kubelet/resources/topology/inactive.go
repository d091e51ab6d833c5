package topology

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Inactive returns a function that reports whether a pod is not active, so that the resources allocated to it
// can be freed. active returns the pods that have not terminated. The pod `but` always counts as active,
// because it is being admitted. While known returns false, active may be incomplete and no pod counts as
// inactive. A nil known means that active is always complete.
func Inactive(active func() []*v1.Pod, known func() bool, but types.UID) func(types.UID) bool {
	if known != nil && !known() {
		return func(types.UID) bool { return false }
	}
	stay := map[types.UID]bool{but: true}
	for _, p := range active() {
		stay[p.UID] = true
	}
	return func(uid types.UID) bool { return !stay[uid] }
}

// Settle implements Provider.Settle for a provider that stores allocations in the map held, by pod. If ok is true,
// it calls save, which writes the state file. If ok is false or save fails, it removes the allocations of the pod.
// The caller must hold the lock of the map.
func Settle[T any](held map[types.UID]T, pod types.UID, ok bool, save func() error) error {
	if _, has := held[pod]; !has {
		return nil
	}
	if !ok {
		delete(held, pod)
		return nil
	}
	if err := save(); err != nil {
		delete(held, pod)
		return err
	}
	return nil
}
