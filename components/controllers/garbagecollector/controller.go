// Package garbagecollector deletes objects whose owners are gone, and carries
// out foreground and orphaning deletion.
//
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
//
// It watches the metadata of all that can be deleted and keeps a graph of
// owners and dependents in memory. The graph says where to look; before
// anything is deleted, the object and its owners are asked for in the API.
package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/lifecycle"
)

// Informer gives an informer of a resource whose objects have at least their
// metadata. It runs already, or is started to run until ctx ends; ctx ends when
// the resource is no longer served.
type Informer func(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (cache.SharedIndexInformer, error)

// Config says what the collector works on.
type Config struct {
	Discovery discovery.DiscoveryInterface
	Metadata  metadata.Interface
	// Informer may be nil: the metadata API is watched.
	Informer Informer
}

// resync is the time between looks at what is served, besides those that changes of
// CRDs and APIServices bring.
const resync = 30 * time.Second

// Collector is the garbage collector. Make it with New.
type Collector struct {
	env   control.Env
	cfg   Config
	graph *graph
	// deletes and orphans are keyed by UID.
	deletes, orphans *control.Loop
	absent           *lru.Cache // identities of owners known to be absent
	ready            chan struct{}
	discover         chan struct{} // asks for a look at what is served

	mu       sync.Mutex
	served   *served
	monitors map[schema.GroupVersionResource]*monitor
	// settled is closed once all monitors are synced, or long enough were
	// waited for, and another takes its place when new ones begin. begun says
	// that there were any.
	settled chan struct{}
	begun   bool
	wg      sync.WaitGroup // what Run waits for
}

// monitor is the watch of one resource.
type monitor struct {
	cancel context.CancelFunc
	synced cache.DoneChecker
	remove func()
}

// New makes the collector.
func New(env control.Env, cfg Config) (*Collector, error) {
	if cfg.Discovery == nil || cfg.Metadata == nil {
		return nil, errors.New("garbage collector: discovery and metadata clients are needed")
	}
	if env.Workers < 1 {
		env.Workers = 20
	}
	env = env.Defaulted()
	c := &Collector{
		env:      env,
		cfg:      cfg,
		absent:   lru.New(500),
		ready:    make(chan struct{}),
		discover: make(chan struct{}, 1),
		served:   &served{},
		monitors: map[schema.GroupVersionResource]*monitor{},
		settled:  make(chan struct{}),
	}
	if c.cfg.Informer == nil {
		c.cfg.Informer = c.byMetadata
	}
	c.deletes = control.NewLoop(env, "garbagecollector", c.gated(c.attemptDelete))
	c.orphans = control.NewLoop(env, "garbagecollector-orphan", c.gated(c.attemptOrphan))
	c.graph = &graph{
		nodes:        map[types.UID]*node{},
		toDelete:     func(uid types.UID) { c.deletes.Add(string(uid)) },
		toOrphan:     func(uid types.UID) { c.orphans.Add(string(uid)) },
		foreignOwner: c.foreignOwner,
	}
	return c, nil
}

// byMetadata is the Informer that watches the metadata API.
func (c *Collector) byMetadata(ctx context.Context, gvr schema.GroupVersionResource, _ schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
	i := metadatainformer.NewFilteredMetadataInformer(c.cfg.Metadata, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	c.wg.Go(func() { i.RunWithContext(ctx) })
	return i, nil
}

// Ready is closed once all that is served is watched and known, and deletions
// are worked on.
func (c *Collector) Ready() <-chan struct{} { return c.ready }

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	defer c.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, l := range []*control.Loop{c.deletes, c.orphans} {
		c.wg.Go(func() { _ = l.Run(ctx) })
	}
	defer c.stopMonitors()
	c.follow(ctx)
	c.wg.Go(func() {
		if c.waitSettled(ctx) == nil {
			close(c.ready)
		}
	})
	// One timer, not a ticker: each look begins a new wait.
	timer := time.NewTimer(resync)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.discover:
			// What comes with a CRD is served a little later, and CRDs come in
			// numbers.
			if !lifecycle.Pause(ctx, time.Second) {
				return nil
			}
			select {
			case <-c.discover:
			default:
			}
		case <-timer.C:
		}
		c.follow(ctx)
		timer.Reset(resync)
	}
}

// gated makes a sync wait until all is watched: a dependent not yet known must
// not be taken for absent.
func (c *Collector) gated(f func(ctx context.Context, uid types.UID) error) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		if err := c.waitSettled(ctx); err != nil {
			return err
		}
		return f(ctx, types.UID(key))
	}
}

func (c *Collector) waitSettled(ctx context.Context) error {
	for {
		c.mu.Lock()
		settled := c.settled
		c.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		last := settled == c.settled
		c.mu.Unlock()
		if last && ctx.Err() == nil {
			return nil
		}
	}
}

// follow brings the monitors in line with what is served.
func (c *Collector) follow(ctx context.Context) {
	found, err := discoverAll(c.cfg.Discovery)
	if err != nil {
		c.env.Log.WarnContext(ctx, "not all that is served could be discovered", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found == nil {
		if len(c.monitors) == 0 {
			// Nothing works without; try again soon.
			time.AfterFunc(time.Second, c.lookAgain)
		}
		return
	}
	found.keep(c.served)
	c.served = found
	changed := false
	for gvr, m := range c.monitors {
		if _, ok := found.deletable[gvr]; !ok {
			m.remove()
			m.cancel()
			delete(c.monitors, gvr)
			changed = true
		}
	}
	for gvr, kind := range found.deletable {
		if c.monitors[gvr] != nil {
			continue
		}
		m, err := c.watch(ctx, gvr, kind)
		if err != nil {
			c.env.Log.WarnContext(ctx, "resource cannot be watched", "resource", gvr, "error", err)
			continue
		}
		c.monitors[gvr] = m
		changed = true
	}
	if changed {
		c.settle(ctx)
	}
}

// settleTimeout is how long deletions wait for new resources' first list. One
// whose webhook is broken never lists, and must not stop all others.
const settleTimeout = 30 * time.Second

// settle begins to wait for all monitors. c.mu is held.
func (c *Collector) settle(ctx context.Context) {
	if !c.begun {
		c.begun = true
		close(c.settled)
	}
	done := make(chan struct{})
	c.settled = done
	var checks []cache.DoneChecker
	for _, m := range c.monitors {
		checks = append(checks, m.synced)
	}
	c.wg.Go(func() {
		defer close(done)
		timeout := time.NewTimer(settleTimeout)
		defer timeout.Stop()
		for _, check := range checks {
			select {
			case <-check.Done():
			case <-timeout.C:
				c.env.Log.WarnContext(ctx, "collecting garbage though not all resources could be listed", "missing", check.Name())
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// lookAgain asks for a look at what is served.
func (c *Collector) lookAgain() {
	select {
	case c.discover <- struct{}{}:
	default:
	}
}

func (c *Collector) stopMonitors() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for gvr, m := range c.monitors {
		m.remove()
		m.cancel()
		delete(c.monitors, gvr)
	}
}

// watch begins to watch a resource.
func (c *Collector) watch(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (*monitor, error) {
	ctx, cancel := context.WithCancel(ctx)
	informer, err := c.cfg.Informer(ctx, gvr, kind)
	if err != nil {
		cancel()
		return nil, err
	}
	reg, err := informer.AddEventHandler(c.handler(kind))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching %s: %w", gvr, err)
	}
	return &monitor{
		cancel: cancel,
		synced: reg.HasSyncedChecker(),
		remove: func() { _ = informer.RemoveEventHandler(reg) },
	}, nil
}

// handler takes the objects of a kind into the graph.
func (c *Collector) handler(kind schema.GroupVersionKind) cache.ResourceEventHandler {
	surface := kind.Group == "apiextensions.k8s.io" || kind.Group == "apiregistration.k8s.io"
	see := func(obj any) {
		m, ok := obj.(metav1.Object)
		if !ok {
			return
		}
		id := identity{gvk: kind, namespace: m.GetNamespace(), name: m.GetName(), uid: m.GetUID()}
		c.absent.Remove(id.absentKey())
		c.graph.seen(id, m)
		if surface {
			c.lookAgain()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(a, b any) {
			old, ok1 := a.(metav1.Object)
			cur, ok2 := b.(metav1.Object)
			if !ok1 || !ok2 || old.GetResourceVersion() == cur.GetResourceVersion() && old.GetResourceVersion() != "" {
				return
			}
			if !surface && !relevant(old, cur) {
				return
			}
			if old.GetUID() != cur.GetUID() {
				// It was made anew while nobody looked.
				c.graph.vanished(old.GetUID())
			}
			see(cur)
		},
		DeleteFunc: func(obj any) {
			if m, ok := control.Object[metav1.Object](obj); ok {
				c.graph.vanished(m.GetUID())
			}
			if surface {
				c.lookAgain()
			}
		},
	}
}

// relevant tells whether an update changes anything that the graph shows. Most
// do not: they are status.
func relevant(old, cur metav1.Object) bool {
	if old.GetUID() != cur.GetUID() || (old.GetDeletionTimestamp() == nil) != (cur.GetDeletionTimestamp() == nil) {
		return true
	}
	a, b := old.GetOwnerReferences(), cur.GetOwnerReferences()
	if len(a) != len(b) {
		return true
	}
	for i := range a {
		if a[i].UID != b[i].UID || a[i].Name != b[i].Name || a[i].Kind != b[i].Kind || a[i].APIVersion != b[i].APIVersion || blocks(a[i]) != blocks(b[i]) {
			return true
		}
	}
	if cur.GetDeletionTimestamp() == nil {
		return false
	}
	x, y := old.GetFinalizers(), cur.GetFinalizers()
	if len(x) != len(y) {
		return true
	}
	for i := range x {
		if x[i] != y[i] {
			return true
		}
	}
	return false
}

// absentKey names an owner among those known to be absent. An owner in another
// namespace, or by another kind, is another.
func (id identity) absentKey() identity {
	id.gvk.Version = ""
	return id
}

// foreignOwner records that an object names an owner of another namespace.
func (c *Collector) foreignOwner(d identity, ref metav1.OwnerReference) {
	apiVersion, kind := d.gvk.ToAPIVersionAndKind()
	c.env.Events.Eventf(&corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: d.namespace, Name: d.name, UID: d.uid},
		corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef %s does not exist in namespace %q", describe(ref, d.namespace), d.namespace)
}

// describe names an owner that is looked for in a namespace.
func describe(ref metav1.OwnerReference, namespace string) string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", ref.APIVersion, ref.Kind, namespace, ref.Name, ref.UID)
}
