package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// identity is the kind, namespace, name and UID of an object, which together identify it.
type identity struct {
	gvk             schema.GroupVersionKind
	namespace, name string
	uid             types.UID
}

// node is an object in the graph of owners and dependents.
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

// graph contains all objects that have owners or can be owners. It is safe for concurrent use.
type graph struct {
	// toDelete and toOrphan enqueue a node by its UID. They are called with mu held and do not
	// block.
	toDelete, toOrphan func(types.UID)
	// foreignOwner is called for a dependent whose owner is in another namespace.
	foreignOwner func(dependent identity, ref metav1.OwnerReference)

	mu    sync.Mutex
	nodes map[types.UID]*node // guarded by mu, which also guards the nodes
}

// observe adds or updates an object.
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

// updateOwners adds n to the dependents of its owners, and removes it from those of its former owners.
// The caller holds g.mu.
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

// forget removes an object that was deleted or never existed.
func (g *graph) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n)
	}
}

// remove removes n from the graph. The caller holds g.mu.
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

// removeVirtual removes a virtual owner that does not exist.
func (g *graph) removeVirtual(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil && n.virtual {
		g.remove(n)
	}
}

// restoreDependent adds an object again to the dependents of owners that exist. It was removed if another
// dependent referred to the same owner incorrectly, which made the owner absent for a moment.
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

// view is a copy of the parts of a node that a sync needs.
type view struct {
	identity
	virtual, deleting, foreground bool
	owners                        []metav1.OwnerReference
	// dependents are copies without their dependents.
	dependents []view
}

// get returns a copy of a node.
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

func (n *node) view() view {
	return view{identity: n.identity, virtual: n.virtual, deleting: n.deleting, foreground: n.foreground, owners: n.owners}
}

// owner returns v's owner reference to uid, or nil.
func (v view) owner(uid types.UID) *metav1.OwnerReference {
	for i := range v.owners {
		if v.owners[i].UID == uid {
			return &v.owners[i]
		}
	}
	return nil
}

// refMatches reports whether ref, in an object of namespace, matches n.
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

func blocks(ref metav1.OwnerReference) bool {
	return ptr.Deref(ref.BlockOwnerDeletion, false)
}

func has(list []string, s string) bool {
	return slices.Contains(list, s)
}
