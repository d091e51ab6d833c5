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
)

// graph knows for each node what its pods refer to.
type graph struct {
	mu sync.RWMutex // guards all below
	// pods holds what was counted for each pod that is on a node.
	pods map[types.NamespacedName]*podEntry
	// nodes counts for each node how many pods refer to an object.
	nodes map[string]map[ref]int
	// changed is closed and replaced when a node gains a reference.
	changed chan struct{}
	// filled is closed once all pods have been told, where no informer tells.
	filled chan struct{}
}

// Name as cache.DoneChecker.
func (g *graph) Name() string { return "the graph of nodes and pods" }

// Done as cache.DoneChecker.
func (g *graph) Done() <-chan struct{} { return g.filled }

type podEntry struct {
	node string
	// refs are those to other objects.
	refs []ref
}

func newGraph() *graph {
	return &graph{
		pods:    map[types.NamespacedName]*podEntry{},
		nodes:   map[string]map[ref]int{},
		changed: make(chan struct{}),
		filled:  make(chan struct{}),
	}
}

// handler feeds the graph from a pod informer.
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

func (g *graph) set(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	// The pod may not be kept for its strings.
	key := types.NamespacedName{Namespace: own(pod.Namespace), Name: strings.Clone(pod.Name)}
	entry := &podEntry{node: own(pod.Spec.NodeName), refs: podRefs(pod)}
	// Handlers are called by one goroutine, so what is read here stays.
	g.mu.RLock()
	old := g.pods[key]
	g.mu.RUnlock()
	if old != nil && old.node == entry.node && slices.Equal(old.refs, entry.refs) {
		return
	}
	for i := range entry.refs {
		entry.refs[i].namespace, entry.refs[i].name = key.Namespace, own(entry.refs[i].name)
	}
	entry.refs = slices.Clip(entry.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(key)
	g.pods[key] = entry
	counts := g.nodes[entry.node]
	if counts == nil {
		counts = map[ref]int{}
		g.nodes[entry.node] = counts
	}
	for _, r := range entry.refs {
		counts[r]++
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// own returns a copy of s that many share.
func own(s string) string { return unique.Make(s).Value() }

// keep removes the pods that there are none of any more.
func (g *graph) keep(is func(namespace, name string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.pods {
		if !is(key.Namespace, key.Name) {
			g.drop(key)
		}
	}
}

func (g *graph) removed(namespace, name string) {
	g.remove(types.NamespacedName{Namespace: namespace, Name: name})
}

func (g *graph) remove(key types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(key)
}

// drop must be called with the lock held.
func (g *graph) drop(key types.NamespacedName) {
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

// has tells whether a pod of the node refers to r. A kubelet can learn of a
// pod, and ask for what it needs, before the graph has heard of the pod; so the
// answer no is given only when it has not changed for the time of patience.
func (g *graph) has(ctx context.Context, node string, r ref, patience time.Duration) bool {
	var timeout <-chan time.Time
	for {
		g.mu.RLock()
		found, changed := g.refers(node, r), g.changed
		g.mu.RUnlock()
		if found || patience == 0 {
			return found
		}
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

// refers wants the lock held.
func (g *graph) refers(node string, r ref) bool {
	if r.kind == refPod {
		entry := g.pods[types.NamespacedName{Namespace: r.namespace, Name: r.name}]
		return entry != nil && entry.node == node
	}
	return g.nodes[node][r] > 0
}

// claims lists the claims that the node's pods refer to.
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
