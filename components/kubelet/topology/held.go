package topology

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Gone tells of which pods nothing runs any more, so that what they hold is free:
// of all but one, which is to be given something, and those that active returns,
// once known tells that these are all; nil: they always are.
func Gone(active func() []*v1.Pod, known func() bool, but types.UID) func(types.UID) bool {
	if known != nil && !known() {
		return func(types.UID) bool { return false }
	}
	stay := map[types.UID]bool{but: true}
	for _, p := range active() {
		stay[p.UID] = true
	}
	return func(uid types.UID) bool { return !stay[uid] }
}

// Settle keeps what a pod was given by save, or takes it back when the pod is not
// let in or cannot be remembered: Provider.Settle for who keeps what pods hold in a
// map. The caller holds what guards held.
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
