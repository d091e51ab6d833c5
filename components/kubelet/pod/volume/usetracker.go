package volume

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// UseTracker records which PersistentVolumes pods use, by the directories that use them. The kubelet reports
// them as in use in the Node status, so that the attach-detach controller does not detach them. Its methods
// are safe for concurrent use.
type UseTracker struct {
	// Changed is called without locks held when the result of InUse has changed. It must not block,
	// and may be nil. It is set before the first use.
	Changed func()

	mu sync.Mutex
	// usersOf maps each volume to the directories that use it; no set is empty. It is guarded by mu.
	usersOf map[v1.UniqueVolumeName]map[string]bool
}

// Use records that the directory dir uses a volume, until Release is called for dir. If dir is the first user of the
// volume, Use calls Changed.
func (u *UseTracker) Use(name v1.UniqueVolumeName, dir string) {
	u.mu.Lock()
	first := u.usersOf[name] == nil
	if first {
		if u.usersOf == nil {
			u.usersOf = map[v1.UniqueVolumeName]map[string]bool{}
		}
		u.usersOf[name] = map[string]bool{}
	}
	u.usersOf[name][dir] = true
	u.mu.Unlock()
	u.notifyChanged(first)
}

// Release records that the directory dir no longer uses any volume. If dir was the last user of a volume, Release
// calls Changed.
func (u *UseTracker) Release(dir string) {
	u.mu.Lock()
	last := false
	for name, dirs := range u.usersOf {
		if delete(dirs, dir); len(dirs) == 0 {
			delete(u.usersOf, name)
			last = true
		}
	}
	u.mu.Unlock()
	u.notifyChanged(last)
}

// notifyChanged calls u.Changed, unless it is nil, if changed is true: the list of volumes in use has changed.
func (u *UseTracker) notifyChanged(changed bool) {
	if changed && u.Changed != nil {
		u.Changed()
	}
}

// InUse returns the volumes in use, sorted. The caller owns the slice.
func (u *UseTracker) InUse() []v1.UniqueVolumeName {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []v1.UniqueVolumeName
	for name := range u.usersOf {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Attached reports whether the node n may use a volume: the attach-detach controller has attached it, and the
// status of the node reports it as in use, so that it will not be detached. n may be nil.
func Attached(n *v1.Node, name v1.UniqueVolumeName) bool {
	return n != nil && slices.Contains(n.Status.VolumesInUse, name) &&
		slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
}
