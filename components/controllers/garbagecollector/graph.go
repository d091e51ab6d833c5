package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// identity identifies an object by kind, namespace, name and UID.
type identity struct {
	gvk             schema.GroupVersionKind
	namespace, name string
	uid             types.UID
}

// node is an object in the graph. A virtual node stands for an object that is only known from owner references.
type node struct {
	identity
	// virtual is true if the object was not observed, only referred to as an owner. Its version and
	// namespace are then taken from a dependent.
	virtual bool
	owners  []metav1.OwnerReference
	// dependents are the nodes that refer to this node as an owner, by UID.
	dependents map[types.UID]*node
	// deleting is true if the object has a deletion timestamp, foreground if it also waits for the
	// deletion of its dependents.
	deleting, foreground bool
}

// graph contains the observed objects and their owners, linked by owner references. It determines which objects to
// check, and enqueues them with toDelete and toOrphan. It is safe for concurrent use.
type graph struct {
	// toDelete and toOrphan enqueue a node by its UID. They are called with mu held and do not
	// block.
	toDelete, toOrphan func(types.UID)
	// foreignOwner is called for a dependent whose owner is in another namespace.
	foreignOwner func(dependent identity, ref metav1.OwnerReference)

	mu    sync.Mutex
	nodes map[types.UID]*node // guarded by mu, which also guards the nodes
}

// observe adds an object from a monitor to the graph or updates it, and enqueues the objects that the change affects.
func (g *graph) observe(id identity, m metav1.Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[id.uid]
	owners := m.GetOwnerReferences()
	deleting := m.GetDeletionTimestamp() != nil
	var before []metav1.OwnerReference
	switch {
	case n == nil:
		n = &node{identity: id}
		g.nodes[id.uid] = n
	case n.virtual:
		n.virtual = false
		n.identity = id
		// Dependents with a reference that does not match the observed object have no valid owner.
		for uid, d := range n.dependents {
			for _, ref := range d.owners {
				if ref.UID == id.uid && !refMatches(ref, d.namespace, n) {
					g.toDelete(uid)
					if id.namespace != "" && d.namespace != id.namespace {
						g.foreignOwner(d.identity, ref)
					}
				}
			}
		}
	default:
		n.identity.gvk = id.gvk
		before = n.owners
	}
	n.owners = append([]metav1.OwnerReference(nil), owners...)
	g.updateOwners(n, before)
	n.deleting = deleting
	if !deleting {
		return
	}
	if has(m.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		// Orphan the dependents before anything else.
		g.toOrphan(n.uid)
		return
	}
	if has(m.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		if !n.foreground {
			n.foreground = true
			for uid := range n.dependents {
				g.toDelete(uid)
			}
		}
		g.toDelete(n.uid)
	}
}

// updateOwners links n to its owners and removes the links to former owners. before are the owner references before the
// update. An owner that was not observed gets a virtual node and is enqueued, so that the collector checks whether it
// exists. The caller must hold g.mu.
func (g *graph) updateOwners(n *node, before []metav1.OwnerReference) {
	now := map[types.UID]metav1.OwnerReference{}
	for _, ref := range n.owners {
		now[ref.UID] = ref
	}
	old := map[types.UID]metav1.OwnerReference{}
	for _, ref := range before {
		old[ref.UID] = ref
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		cur, still := now[ref.UID]
		if !still {
			delete(owner.dependents, n.uid)
			if owner.virtual && len(owner.dependents) == 0 {
				delete(g.nodes, owner.uid)
				continue
			}
		}
		// The former owner may be waiting only for this dependent.
		if owner.foreground && blocks(ref) && (!still || !blocks(cur)) {
			g.toDelete(owner.uid)
		}
	}
	changed := false
	for uid, ref := range now {
		o, had := old[uid]
		if had && o.Kind == ref.Kind && o.Name == ref.Name && o.APIVersion == ref.APIVersion {
			continue
		}
		changed = true
		owner := g.nodes[uid]
		if owner == nil {
			gv, _ := schema.ParseGroupVersion(ref.APIVersion)
			owner = &node{
				identity:   identity{gvk: gv.WithKind(ref.Kind), namespace: n.namespace, name: ref.Name, uid: uid},
				virtual:    true,
				dependents: map[types.UID]*node{},
			}
			g.nodes[uid] = owner
			// Check whether the owner exists.
			g.toDelete(uid)
		} else if !refMatches(ref, n.namespace, owner) {
			if !owner.virtual && owner.namespace != "" && owner.namespace != n.namespace {
				g.foreignOwner(n.identity, ref)
			}
			g.toDelete(n.uid)
		}
		if owner.dependents == nil {
			owner.dependents = map[types.UID]*node{}
		}
		owner.dependents[n.uid] = n
		if owner.foreground {
			g.toDelete(n.uid)
		}
	}
	if changed || len(now) < len(old) {
		// After the change, n may have no existing owner.
		if len(before) > 0 && len(now) > 0 {
			g.toDelete(n.uid)
		}
	}
}

// forget removes an object that was deleted, and enqueues its dependents.
func (g *graph) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n)
	}
}

// remove removes n from the graph. It enqueues its dependents, whose owner is now absent, and owners that may be
// waiting for its deletion. The caller must hold g.mu.
func (g *graph) remove(n *node) {
	uid := n.uid
	delete(g.nodes, uid)
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, uid)
		if owner.foreground {
			g.toDelete(owner.uid)
		}
		if owner.virtual && len(owner.dependents) == 0 {
			delete(g.nodes, owner.uid)
		}
	}
	for d := range n.dependents {
		g.toDelete(d)
	}
}

// removeVirtual removes the node of an owner that was not observed and does not exist. It does nothing if the owner was
// observed in the meantime.
func (g *graph) removeVirtual(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil && n.virtual {
		g.remove(n)
	}
}

// restoreDependent links an object to its existing owners again. The link is missing if another dependent had a wrong
// reference to the same owner, for example with a wrong name, because the owner counted as absent for a moment.
func (g *graph) restoreDependent(uid types.UID, owners []metav1.OwnerReference) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return
	}
	for _, ref := range owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			gv, _ := schema.ParseGroupVersion(ref.APIVersion)
			owner = &node{identity: identity{gvk: gv.WithKind(ref.Kind), namespace: n.namespace, name: ref.Name, uid: ref.UID}, virtual: true}
			g.nodes[ref.UID] = owner
			g.toDelete(ref.UID)
		}
		if owner.dependents == nil {
			owner.dependents = map[types.UID]*node{}
		}
		if owner.dependents[uid] == nil {
			owner.dependents[uid] = n
			if owner.foreground {
				g.toDelete(uid)
			}
		}
	}
}

// view is a copy of a node, which can be used without the graph's lock.
type view struct {
	identity
	virtual, deleting, foreground bool
	owners                        []metav1.OwnerReference
	// dependents are copies without their dependents.
	dependents []view
}

// get returns a copy of a node and its dependents. It returns false if the graph does not contain the UID.
func (g *graph) get(uid types.UID) (view, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return view{}, false
	}
	v := n.view()
	for _, d := range n.dependents {
		v.dependents = append(v.dependents, d.view())
	}
	return v, true
}

// view returns a copy of n, without its dependents, that can be used without the lock. The caller must hold the
// graph's mu.
func (n *node) view() view {
	return view{identity: n.identity, virtual: n.virtual, deleting: n.deleting, foreground: n.foreground, owners: n.owners}
}

// owner returns the object's owner reference to uid, or nil if it has none.
func (v view) owner(uid types.UID) *metav1.OwnerReference {
	for i := range v.owners {
		if v.owners[i].UID == uid {
			return &v.owners[i]
		}
	}
	return nil
}

// refMatches reports whether the owner reference ref of an object in a namespace correctly identifies n: group, kind
// and name match, and n is in the same namespace or cluster-scoped.
func refMatches(ref metav1.OwnerReference, namespace string, n *node) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Group != n.gvk.Group || ref.Kind != n.gvk.Kind || ref.Name != n.name {
		return false
	}
	if n.virtual {
		return n.namespace == namespace
	}
	return n.namespace == "" || n.namespace == namespace
}

// blocks reports whether an owner reference blocks the foreground deletion of the owner.
func blocks(ref metav1.OwnerReference) bool {
	return ptr.Deref(ref.BlockOwnerDeletion, false)
}

func has(list []string, s string) bool {
	return slices.Contains(list, s)
}
