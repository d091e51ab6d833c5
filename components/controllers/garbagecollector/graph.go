package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// identity names an object of the API.
type identity struct {
	gvk             schema.GroupVersionKind
	namespace, name string
	uid             types.UID
}

// node is an object in the graph of owners and dependents.
type node struct {
	identity
	// virtual says that the object was never seen, only named as an owner: its
	// version, and its namespace, are what a dependent says.
	virtual bool
	owners  []metav1.OwnerReference
	// dependents name this node as an owner, by UID.
	dependents map[types.UID]*node
	// deleting: it has a deletion timestamp. foreground: besides, it waits for
	// its dependents.
	deleting, foreground bool
}

// graph holds all objects that have owners or are owners, or could be. It is
// safe for several goroutines.
type graph struct {
	// toDelete and toOrphan queue a node for a look by its UID; they are
	// called with mu held and do not block.
	toDelete, toOrphan func(types.UID)
	// foreignOwner is told of a dependent whose owner is in another
	// namespace.
	foreignOwner func(dependent identity, ref metav1.OwnerReference)

	mu    sync.Mutex
	nodes map[types.UID]*node // guarded by mu, the nodes too
}

// seen takes in an object as it is now.
func (g *graph) seen(id identity, m metav1.Object) {
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
		// Some may name it by what it is not: for them it is absent.
		for uid, d := range n.dependents {
			for _, ref := range d.owners {
				if ref.UID == id.uid && !names(ref, d.namespace, n) {
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
	g.relate(n, before)
	n.deleting = deleting
	if !deleting {
		return
	}
	if has(m.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		// What it owns is freed before anything else.
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

// relate moves n in among the dependents of its owners, and out of those that
// it had before. g.mu is held.
func (g *graph) relate(n *node, before []metav1.OwnerReference) {
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
		// An owner may wait for just this one.
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
			// Is it there?
			g.toDelete(uid)
		} else if !names(ref, n.namespace, owner) {
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
		// With the change of owners, none may be left.
		if len(before) > 0 && len(now) > 0 {
			g.toDelete(n.uid)
		}
	}
}

// vanished takes out an object that is no more, or never was.
func (g *graph) vanished(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n)
	}
}

// remove takes n out. g.mu is held.
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

// absent takes out an owner that was only named, and is not there.
func (g *graph) absent(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil && n.virtual {
		g.remove(n)
	}
}

// confirm puts an object back among the dependents of owners that were found
// to be there. It was cut off if another dependent described the same owner
// wrongly, which made it absent for a moment.
func (g *graph) confirm(uid types.UID, owners []metav1.OwnerReference) {
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

// view is a copy of what a sync needs of a node.
type view struct {
	identity
	virtual, deleting, foreground bool
	owners                        []metav1.OwnerReference
	// dependents are copies, without their own dependents.
	dependents []view
}

// get copies a node.
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

// owner returns the reference of v to uid, nil if it has none.
func (v view) owner(uid types.UID) *metav1.OwnerReference {
	for i := range v.owners {
		if v.owners[i].UID == uid {
			return &v.owners[i]
		}
	}
	return nil
}

// names tells whether ref, of an object in namespace, describes n.
func names(ref metav1.OwnerReference, namespace string, n *node) bool {
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
