package volume

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Users knows for whose sake volumes must not be given to other nodes. Its methods are
// safe for several goroutines.
type Users struct {
	// Changed is called when InUse returns something else than before, without a lock
	// being held, and must not block; it may be nil. It is set before the first use.
	Changed func()

	mu sync.Mutex
	// places where a volume is used, none of them empty. Guarded by mu.
	places map[v1.UniqueVolumeName]map[string]bool
}

// Use says that a volume is needed for what is at dir, until Leave.
func (u *Users) Use(name v1.UniqueVolumeName, dir string) {
	u.mu.Lock()
	first := u.places[name] == nil
	if first {
		if u.places == nil {
			u.places = map[v1.UniqueVolumeName]map[string]bool{}
		}
		u.places[name] = map[string]bool{}
	}
	u.places[name][dir] = true
	u.mu.Unlock()
	u.tell(first)
}

// Leave says that nothing is at dir any more.
func (u *Users) Leave(dir string) {
	u.mu.Lock()
	last := false
	for name, dirs := range u.places {
		if delete(dirs, dir); len(dirs) == 0 {
			delete(u.places, name)
			last = true
		}
	}
	u.mu.Unlock()
	u.tell(last)
}

func (u *Users) tell(changed bool) {
	if changed && u.Changed != nil {
		u.Changed()
	}
}

// InUse returns the volumes that are needed, sorted. The caller owns the slice.
func (u *Users) InUse() []v1.UniqueVolumeName {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []v1.UniqueVolumeName
	for name := range u.places {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Given tells whether a volume is the node's to use: the controller has given it to the
// node, and as the node says that it uses it, it is not taken away again. n may be nil.
func Given(n *v1.Node, name v1.UniqueVolumeName) bool {
	return n != nil && slices.Contains(n.Status.VolumesInUse, name) &&
		slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
}
