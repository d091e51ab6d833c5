package policy

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"hyperkube/internal/client"
)

// clusterPolicyResource is the resource of ClusterNetworkPolicies, and definitionName the name of its
// CustomResourceDefinition.
var (
	clusterPolicyResource = policyv1alpha2.SchemeGroupVersion.WithResource("clusternetworkpolicies")
	definitionResource    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	definitionName        = clusterPolicyResource.GroupResource().String()
)

// clusterPolicies watches ClusterNetworkPolicies while their CustomResourceDefinition exists. Without the definition it only
// watches that one name. Its exported methods are safe for concurrent use.
type clusterPolicies struct {
	dynamic     dynamic.Interface
	definitions cache.SharedIndexInformer // of metadata, of the one definition
	changed     func()                    // called after each change; must not block
	events      chan struct{}             // buffered: holds one element after a change of the definition

	known     chan struct{} // closed when the policies are known, or cannot be read
	knownOnce sync.Once

	mu       sync.Mutex                // guards the field below
	policies cache.SharedIndexInformer // nil without a definition
}

// newClusterPolicies returns a clusterPolicies that reads with the clients, and calls changed after each change of a policy.
func newClusterPolicies(meta metadata.Interface, dyn dynamic.Interface, changed func()) (*clusterPolicies, error) {
	c := &clusterPolicies{dynamic: dyn, changed: changed, events: make(chan struct{}, 1), known: make(chan struct{})}
	c.definitions = metadatainformer.NewFilteredMetadataInformer(meta, definitionResource, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, definitionName).String()
	}).Informer()
	notify := func(any) {
		select {
		case c.events <- struct{}{}:
		default:
		}
	}
	if _, err := c.definitions.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify}); err != nil {
		return nil, fmt.Errorf("watching definition of ClusterNetworkPolicies: %w", err)
	}
	// Pods must be able to start if the API server does not respond, or does not allow this.
	logError := client.StartErrors()
	err := c.definitions.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		c.setKnown()
		logError(ctx, r, err)
	})
	return c, err
}

// setKnown wakes the calls that wait until the policies are known.
func (c *clusterPolicies) setKnown() { c.knownOnce.Do(func() { close(c.known) }) }

// Name implements cache.DoneChecker.
func (c *clusterPolicies) Name() string { return "ClusterNetworkPolicies" }

// Done implements cache.DoneChecker: the channel is closed when the policies are known, or cannot be read.
func (c *clusterPolicies) Done() <-chan struct{} { return c.known }

// run watches the definition and the policies until ctx is done.
func (c *clusterPolicies) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.definitions.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", c.definitions.HasSyncedChecker()) {
		return
	}
	stop := func() {}
	defer func() { stop() }()
	for {
		exists := len(c.definitions.GetStore().ListKeys()) > 0
		switch running := c.informer() != nil; {
		case exists && !running:
			stop = c.start(ctx)
		case !exists && running:
			stop()
			stop = func() {}
			c.setInformer(nil)
			c.changed()
		}
		c.setKnown()
		select {
		case <-c.events:
		case <-ctx.Done():
			return
		}
	}
}

// start starts the informer of policies and waits until it has read them, or cannot. It returns a function that stops the
// informer.
func (c *clusterPolicies) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	policies := c.dynamic.Resource(clusterPolicyResource)
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return policies.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return policies.Watch(ctx, o)
		},
	}, c.dynamic), &unstructured.Unstructured{}, 0, cache.Indexers{})
	failed := make(chan struct{}, 1)
	// These return errors only after the start of the informer.
	_ = informer.SetTransform(toClusterPolicy)
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		select {
		case failed <- struct{}{}:
		default:
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	changed := func(any) { c.changed() }
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { c.changed() }, DeleteFunc: changed})
	c.setInformer(informer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	select {
	case <-informer.HasSyncedChecker().Done():
	case <-failed:
	case <-ctx.Done():
	}
	return func() {
		cancel()
		<-done
	}
}

// toClusterPolicy converts an object of the dynamic client to a ClusterNetworkPolicy without managed fields.
func toClusterPolicy(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	p := &policyv1alpha2.ClusterNetworkPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p); err != nil {
		return nil, fmt.Errorf("reading ClusterNetworkPolicy %s: %w", u.GetName(), err)
	}
	p.ManagedFields = nil
	return p, nil
}

func (c *clusterPolicies) informer() cache.SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policies
}

func (c *clusterPolicies) setInformer(i cache.SharedIndexInformer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies = i
}

// list returns the policies by precedence. The objects are shared and must not be modified. c may be nil.
func (c *clusterPolicies) list() []*policyv1alpha2.ClusterNetworkPolicy {
	if c == nil {
		return nil
	}
	informer := c.informer()
	if informer == nil {
		return nil
	}
	var out []*policyv1alpha2.ClusterNetworkPolicy
	for _, obj := range informer.GetStore().List() {
		if p, ok := obj.(*policyv1alpha2.ClusterNetworkPolicy); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, compareClusterPolicies)
	return out
}
