package authz

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/base/broadcast"
)

// graph records which objects the pods of each node refer to, so that the mode Node can decide
// whether a kubelet may read an object.
type graph struct {
	mu sync.RWMutex // guards all fields below
	// pods contains, for each pod that is assigned to a node, its references as they are counted in
	// nodes.
	pods map[types.NamespacedName]*podEntry
	// nodes counts, for each node, the pods that refer to an object.
	nodes map[string]map[ref]int
	// changed wakes up requests that wait for a reference when a pod is added or its references change.
	changed broadcast.Broadcast
	// filled is closed once all pods have been added. It is not used if the pods come from an informer.
	filled chan struct{}
}

// Name implements cache.DoneChecker. The name is part of the error if a request waits too long.
func (g *graph) Name() string { return "the graph of nodes and pods" }

// Done implements cache.DoneChecker. The channel is closed once the graph contains all pods.
func (g *graph) Done() <-chan struct{} { return g.filled }

// podEntry is a pod in the graph: the name of its node and the objects to which the pod refers.
type podEntry struct {
	node string
	// refs are the references to other objects.
	refs []ref
}

// newGraph returns a graph without pods.
func newGraph() *graph {
	return &graph{
		pods:   map[types.NamespacedName]*podEntry{},
		nodes:  map[string]map[ref]int{},
		filled: make(chan struct{}),
	}
}

// handler returns an event handler that updates the graph from a pod informer.
func (g *graph) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				g.set(pod)
			}
		},
		UpdateFunc: func(_, obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				g.set(pod)
			}
		},
		DeleteFunc: func(obj any) {
			if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tomb.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				g.remove(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
			}
		},
	}
}

// set adds a pod that is assigned to a node, or updates its references. It ignores pods without a node. All calls are
// made by one goroutine.
func (g *graph) set(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	// Copy the strings, because substrings would keep the whole pod in memory.
	key := types.NamespacedName{Namespace: intern(pod.Namespace), Name: strings.Clone(pod.Name)}
	entry := &podEntry{node: intern(pod.Spec.NodeName), refs: podRefs(pod)}
	// Handlers are called by one goroutine, so the entry cannot change after the lock is released.
	g.mu.RLock()
	old := g.pods[key]
	g.mu.RUnlock()
	if old != nil && old.node == entry.node && slices.Equal(old.refs, entry.refs) {
		return
	}
	for i := range entry.refs {
		entry.refs[i].namespace, entry.refs[i].name = key.Namespace, intern(entry.refs[i].name)
	}
	entry.refs = slices.Clip(entry.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(key)
	g.pods[key] = entry
	counts := g.nodes[entry.node]
	if counts == nil {
		counts = map[ref]int{}
		g.nodes[entry.node] = counts
	}
	for _, r := range entry.refs {
		counts[r]++
	}
	g.changed.Send()
}

// intern returns a copy of s that is shared by all equal strings, to save memory.
func intern(s string) string { return unique.Make(s).Value() }

// retain removes each pod for which the function is returns false. Such a pod was deleted while the watch was
// interrupted.
func (g *graph) retain(is func(namespace, name string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.pods {
		if !is(key.Namespace, key.Name) {
			g.dropLocked(key)
		}
	}
}

// removed is called when a pod was deleted. It removes the pod and its references.
func (g *graph) removed(namespace, name string) {
	g.remove(types.NamespacedName{Namespace: namespace, Name: name})
}

// remove removes a pod and its references, if it exists.
func (g *graph) remove(key types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(key)
}

// dropLocked removes a pod and its references, if it exists. The caller holds mu.
func (g *graph) dropLocked(key types.NamespacedName) {
	entry := g.pods[key]
	if entry == nil {
		return
	}
	delete(g.pods, key)
	counts := g.nodes[entry.node]
	for _, r := range entry.refs {
		if counts[r]--; counts[r] <= 0 {
			delete(counts, r)
		}
	}
	if len(counts) == 0 {
		delete(g.nodes, entry.node)
	}
}

// has reports whether a pod of the node refers to the object r. A kubelet can receive a pod, and request its objects,
// before the graph contains the pod. Therefore has waits up to patience, or until ctx is done, before it returns
// false.
func (g *graph) has(ctx context.Context, node string, r ref, patience time.Duration) bool {
	var timeout <-chan time.Time
	for {
		g.mu.RLock()
		found := g.hasLocked(node, r)
		if found || patience == 0 {
			g.mu.RUnlock()
			return found
		}
		changed := g.changed.Next()
		g.mu.RUnlock()
		if timeout == nil {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// hasLocked reports whether a pod of the node refers to the object r, like has but without waiting. The caller holds
// mu.
func (g *graph) hasLocked(node string, r ref) bool {
	if r.kind == refPod {
		entry := g.pods[types.NamespacedName{Namespace: r.namespace, Name: r.name}]
		return entry != nil && entry.node == node
	}
	return g.nodes[node][r] > 0
}

// claims returns the PersistentVolumeClaims to which the node's pods refer.
func (g *graph) claims(node string) []ref {
	g.mu.RLock()
	defer g.mu.RUnlock()
	var out []ref
	for r := range g.nodes[node] {
		if r.kind == refClaim {
			out = append(out, r)
		}
	}
	return out
}
