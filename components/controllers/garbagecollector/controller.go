// Package garbagecollector deletes objects whose owners were deleted, and executes foreground and
// orphaning deletion.
//
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
//
// It watches the metadata of all deletable resources and maintains a graph of owners and dependents
// in memory. The graph only shows which objects to check; before anything is deleted, the collector
// gets the object and its owners from the API server.
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
	"hyperkube/internal/base/lifecycle"
)

// Informer returns an informer of a resource, whose objects contain at least their metadata. The informer runs already,
// or Informer starts it and it runs until ctx is done. The collector cancels ctx when the resource is not served any
// more.
type Informer func(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (cache.SharedIndexInformer, error)

// Config contains the clients and the source of informers of a Collector.
type Config struct {
	Discovery discovery.DiscoveryInterface
	Metadata  metadata.Interface
	// Informer returns the informers; if nil, the collector watches the metadata API.
	Informer Informer
}

// resync is the interval between discoveries of the served resources. Changes of CRDs and APIServices trigger
// additional discoveries.
const resync = 30 * time.Second

// Collector is the garbage collector. It watches all deletable resources, maintains the graph, and deletes objects
// without owners. Use New to create it.
type Collector struct {
	env   control.Env
	cfg   Config
	graph *graph
	// The keys of deletes and orphans are UIDs.
	deletes, orphans *control.Loop
	absent           *lru.Cache // caches the identities of absent owners
	ready            chan struct{}
	rediscover       chan struct{} // triggers a discovery of the served resources

	mu       sync.Mutex
	served   *served
	monitors map[schema.GroupVersionResource]*monitor
	// monitorsSynced is closed once all monitors are synced or settleTimeout is over. It is replaced when
	// new monitors start. monitorsStarted is true once any monitors were started.
	monitorsSynced  chan struct{}
	monitorsStarted bool
	wg              sync.WaitGroup // goroutines that Run waits for
}

// monitor is the watch of one resource. remove removes the event handler from the informer.
type monitor struct {
	cancel context.CancelFunc
	synced cache.DoneChecker
	remove func()
}

// New returns the garbage collector that env and cfg describe. It sends no requests before Run. It returns an error
// if cfg lacks a client.
func New(env control.Env, cfg Config) (*Collector, error) {
	if cfg.Discovery == nil || cfg.Metadata == nil {
		return nil, errors.New("garbage collector: discovery and metadata clients are required")
	}
	if env.Workers < 1 {
		env.Workers = 20
	}
	env = env.Defaulted()
	c := &Collector{
		env:            env,
		cfg:            cfg,
		absent:         lru.New(500),
		ready:          make(chan struct{}),
		rediscover:     make(chan struct{}, 1),
		served:         &served{},
		monitors:       map[schema.GroupVersionResource]*monitor{},
		monitorsSynced: make(chan struct{}),
	}
	if c.cfg.Informer == nil {
		c.cfg.Informer = c.metadataInformer
	}
	c.deletes = control.NewLoop(env, "garbagecollector", c.waitForMonitors(c.attemptDelete))
	c.orphans = control.NewLoop(env, "garbagecollector-orphan", c.waitForMonitors(c.attemptOrphan))
	c.graph = &graph{
		nodes:        map[types.UID]*node{},
		toDelete:     func(uid types.UID) { c.deletes.Add(string(uid)) },
		toOrphan:     func(uid types.UID) { c.orphans.Add(string(uid)) },
		foreignOwner: c.foreignOwner,
	}
	return c, nil
}

// metadataInformer is the default Informer: it watches the metadata API.
func (c *Collector) metadataInformer(ctx context.Context, gvr schema.GroupVersionResource, _ schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
	i := metadatainformer.NewFilteredMetadataInformer(c.cfg.Metadata, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	c.wg.Go(func() { i.RunWithContext(ctx) })
	return i, nil
}

// Ready returns a channel that is closed when all served resources are watched and their first lists processed, so that
// deletions are executed.
func (c *Collector) Ready() <-chan struct{} { return c.ready }

// Run collects garbage until ctx is done. It discovers new resources every 30 seconds and after changes of CRDs and
// APIServices.
func (c *Collector) Run(ctx context.Context) error {
	defer c.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, l := range []*control.Loop{c.deletes, c.orphans} {
		c.wg.Go(func() { _ = l.Run(ctx) })
	}
	defer c.stopMonitors()
	c.updateMonitors(ctx)
	c.wg.Go(func() {
		if c.waitSettled(ctx) == nil {
			close(c.ready)
		}
	})
	// Use a timer rather than a ticker: the interval starts after each discovery.
	timer := time.NewTimer(resync)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.rediscover:
			// The resources of a CRD are served a little later, and CRDs are often created in
			// groups.
			if !lifecycle.Pause(ctx, time.Second) {
				return nil
			}
			select {
			case <-c.rediscover:
			default:
			}
		case <-timer.C:
		}
		c.updateMonitors(ctx)
		timer.Reset(resync)
	}
}

// waitForMonitors returns a sync function that calls f only when all resources are watched. Before that, a dependent
// that is not in the graph yet would count as absent.
func (c *Collector) waitForMonitors(f func(ctx context.Context, uid types.UID) error) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		if err := c.waitSettled(ctx); err != nil {
			return err
		}
		return f(ctx, types.UID(key))
	}
}

// waitSettled waits until all monitors are synced or settleTimeout is over, including those that are started in the
// meantime. It returns an error if ctx is done.
func (c *Collector) waitSettled(ctx context.Context) error {
	for {
		c.mu.Lock()
		settled := c.monitorsSynced
		c.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		last := settled == c.monitorsSynced
		c.mu.Unlock()
		if last && ctx.Err() == nil {
			return nil
		}
	}
}

// updateMonitors discovers the served resources, starts monitors of new ones and stops those of resources that are not
// served any more. Failures are logged; the next discovery retries.
func (c *Collector) updateMonitors(ctx context.Context) {
	found, err := discoverAll(c.cfg.Discovery)
	if err != nil {
		c.env.Log.WarnContext(ctx, "discovery of served resources failed for some or all API groups; garbage collection continues with the resources of their last discovery if there was one, retrying within 30 seconds", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found == nil {
		if len(c.monitors) == 0 {
			// The collector cannot work without discovery; retry soon.
			time.AfterFunc(time.Second, c.triggerDiscovery)
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
			c.env.Log.WarnContext(ctx, "watching resource for garbage collection failed; objects of this resource are not deleted with their owners until a retry succeeds, retrying within 30 seconds", "resource", gvr, "err", err)
			continue
		}
		c.monitors[gvr] = m
		changed = true
	}
	if changed {
		c.waitForSync(ctx)
	}
}

// settleTimeout is how long deletions wait for the first list of new resources. The list of a custom resource with a
// broken conversion webhook never succeeds, and must not block all deletions.
const settleTimeout = 30 * time.Second

// waitForSync starts to wait for the current monitors: it replaces c.monitorsSynced by a channel that is closed when
// all of them are synced or settleTimeout is over. The caller must hold c.mu.
func (c *Collector) waitForSync(ctx context.Context) {
	if !c.monitorsStarted {
		c.monitorsStarted = true
		close(c.monitorsSynced)
	}
	done := make(chan struct{})
	c.monitorsSynced = done
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
				c.env.Log.WarnContext(ctx, "listing resource for garbage collection takes longer than 30 seconds; objects of other resources are collected meanwhile, those of this resource as soon as they are listed", "resource", check.Name())
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// triggerDiscovery makes Run discover the served resources soon. It does not block.
func (c *Collector) triggerDiscovery() {
	select {
	case c.rediscover <- struct{}{}:
	default:
	}
}

// stopMonitors stops all monitors and removes their event handlers, because the informers may be shared.
func (c *Collector) stopMonitors() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for gvr, m := range c.monitors {
		m.remove()
		m.cancel()
		delete(c.monitors, gvr)
	}
}

// watch starts a monitor of a resource: its objects are added to the graph until ctx is done.
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

// handler returns an event handler that updates the graph with the objects of a kind. Updates that change neither
// owners, finalizers nor the deletion are ignored. Events of CRDs and APIServices also trigger a discovery.
func (c *Collector) handler(kind schema.GroupVersionKind) cache.ResourceEventHandler {
	surface := kind.Group == "apiextensions.k8s.io" || kind.Group == "apiregistration.k8s.io"
	see := func(obj any) {
		m, ok := obj.(metav1.Object)
		if !ok {
			return
		}
		id := identity{gvk: kind, namespace: m.GetNamespace(), name: m.GetName(), uid: m.GetUID()}
		c.absent.Remove(id.absentKey())
		c.graph.observe(id, m)
		if surface {
			c.triggerDiscovery()
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
				// The object was deleted and recreated between two lists.
				c.graph.forget(old.GetUID())
			}
			see(cur)
		},
		DeleteFunc: func(obj any) {
			if m, ok := control.Object[metav1.Object](obj); ok {
				c.graph.forget(m.GetUID())
			}
			if surface {
				c.triggerDiscovery()
			}
		},
	}
}

// relevant reports whether an update of an object may change the graph: its UID, owner references or deletion
// timestamp have changed or, while it is being deleted, its finalizers. Most updates change only the status.
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

// absentKey returns the key of an owner in Collector.absent, the cache of owners that do not exist. It contains
// namespace, kind, name and UID, but not the version, because owner references may use any version.
func (id identity) absentKey() identity {
	id.gvk.Version = ""
	return id
}

// foreignOwner emits a warning event that the object d has an owner reference to an object in another namespace, which
// counts as absent.
func (c *Collector) foreignOwner(d identity, ref metav1.OwnerReference) {
	apiVersion, kind := d.gvk.ToAPIVersionAndKind()
	c.env.Events.Eventf(&corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: d.namespace, Name: d.name, UID: d.uid},
		corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef %s does not exist in namespace %q", describe(ref, d.namespace), d.namespace)
}

// describe formats an owner reference of an object in a namespace for an event.
func describe(ref metav1.OwnerReference, namespace string) string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", ref.APIVersion, ref.Kind, namespace, ref.Name, ref.UID)
}
