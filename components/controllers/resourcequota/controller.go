// Package resourcequota computes the usage in the status of ResourceQuotas. Admission increases the
// usage before an object is stored. This controller decreases it when objects are deleted,
// terminate or shrink, and corrects it if an admitted object was not stored.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
package resourcequota

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/discovery"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/quota"
)

// recountDelay is the time between a change of a quota's usage, usually by admission, and the recount. By then the
// admitted object is stored, or will never be.
const recountDelay = 10 * time.Second

// Informer returns an informer of a resource, whose objects contain at least their metadata, with the index
// cache.NamespaceIndex. The informer is already running, or Informer starts it; it then runs until ctx is canceled.
type Informer func(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (cache.SharedIndexInformer, error)

// Config configures how the controller finds and counts the resources that quotas can limit only with count/.
type Config struct {
	// Discovery finds the resources. If nil, only built-in resources are counted.
	Discovery discovery.DiscoveryInterface
	// Metadata is watched if Informer is nil.
	Metadata metadata.Interface
	Informer Informer
}

// Controller writes the usage to the status of quotas. It starts to watch a resource when a quota first limits it.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	lister     corelisters.ResourceQuotaLister
	evaluators quotav1.Registry
	// informers counts the running informers that this controller started.
	informers sync.WaitGroup

	mu sync.Mutex
	// dynamic are the additionally counted resources, besides those of quota.Counted. Guarded by
	// mu.
	dynamic map[schema.GroupResource]dynamicResource
	// watchesDefinitions is true if CustomResourceDefinitions are watched. Guarded by mu.
	watchesDefinitions bool
}

// dynamicResource is a resource whose objects are counted because a quota limits their number: its informer and
// evaluator.
type dynamicResource struct {
	informer  cache.SharedIndexInformer
	evaluator quotav1.Evaluator
	// stop stops the informer, unless it is shared.
	stop context.CancelFunc
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	quotas := env.Informers.Core().V1().ResourceQuotas()
	c := &Controller{
		env:     env,
		cfg:     cfg,
		lister:  quotas.Lister(),
		dynamic: map[schema.GroupResource]dynamicResource{},
	}
	if c.cfg.Informer == nil {
		c.cfg.Informer = c.watchMetadata
	}
	c.Loop = control.NewLoop(env, "resourcequota", c.sync)
	core := env.Informers.Core().V1()
	counted := map[string]cache.SharedIndexInformer{
		"pods":                   core.Pods().Informer(),
		"services":               core.Services().Informer(),
		"persistentvolumeclaims": core.PersistentVolumeClaims().Informer(),
		"configmaps":             core.ConfigMaps().Informer(),
		"secrets":                core.Secrets().Informer(),
		"replicationcontrollers": core.ReplicationControllers().Informer(),
		"resourcequotas":         quotas.Informer(),
	}
	c.evaluators = quota.New(func(gvr schema.GroupVersionResource, namespace string) ([]runtime.Object, error) {
		return inNamespace(counted[gvr.Resource], namespace)
	}, env.Clock.Now)
	for _, gvr := range quota.CoreResources() {
		i := counted[gvr.Resource]
		if i == nil {
			return nil, fmt.Errorf("resourcequota: no informer of %s", gvr.Resource)
		}
		if err := c.Watch(i, c.replenish(c.evaluators.Get(gvr.GroupResource()))); err != nil {
			return nil, err
		}
	}
	return c, c.Watch(quotas.Informer(), control.Handlers(
		func(q *corev1.ResourceQuota) { c.AddObject(q) },
		func(old, q *corev1.ResourceQuota) {
			switch {
			case !quotav1.Equals(old.Spec.Hard, q.Spec.Hard) || !equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard):
				c.AddObject(q)
			case !quotav1.Equals(old.Status.Used, q.Status.Used):
				c.AddAfter(q.Namespace+"/"+q.Name, recountDelay)
			}
		}, nil))
}

// inNamespace returns the objects in a namespace from an informer with the index cache.NamespaceIndex.
func inNamespace(informer cache.SharedIndexInformer, namespace string) ([]runtime.Object, error) {
	found, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Object, 0, len(found))
	for _, f := range found {
		if o, ok := f.(runtime.Object); ok {
			out = append(out, o)
		}
	}
	return out, nil
}

// Run runs the controller until ctx is canceled. It then waits for the informers that the
// controller started.
func (c *Controller) Run(ctx context.Context) error {
	defer c.informers.Wait()
	return c.Loop.Run(ctx)
}

// replenish returns an event handler for the resource that e measures. It enqueues quotas whose usage may have
// decreased after an update or deletion. It ignores additions, because admission already counted them.
func (c *Controller) replenish(e quotav1.Evaluator) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(a, b any) {
			old, ok1 := a.(runtime.Object)
			cur, ok2 := b.(runtime.Object)
			m, ok3 := b.(metav1.Object)
			if !ok1 || !ok2 || !ok3 {
				return
			}
			quotas := c.limits(m.GetNamespace(), e)
			if len(quotas) == 0 {
				return
			}
			before, err1 := e.Usage(old)
			after, err2 := e.Usage(cur)
			changed := err1 != nil || err2 != nil || !quotav1.Equals(before, after)
			for _, q := range quotas {
				if changed || scopeChanged(e, q, old, cur) {
					c.AddObject(q)
				}
			}
			if p, ok := b.(*corev1.Pod); ok && p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
				// A pod does not count any more after its deletion grace period, even if it still
				// exists.
				late := p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds)*time.Second + time.Second)
				for _, q := range quotas {
					c.AddAfter(q.Namespace+"/"+q.Name, late.Sub(c.env.Clock.Now()))
				}
			}
		},
		DeleteFunc: func(obj any) {
			if m, ok := control.Object[metav1.Object](obj); ok {
				for _, q := range c.limits(m.GetNamespace(), e) {
					c.AddObject(q)
				}
			}
		},
	}
}

// scopeChanged reports whether an object left or entered the scopes of q with an update, for example because a pod got
// a deadline. It also returns true if this cannot be determined.
func scopeChanged(e quotav1.Evaluator, q *corev1.ResourceQuota, old, cur runtime.Object) bool {
	was, err1 := e.Matches(q, old)
	is, err2 := e.Matches(q, cur)
	return err1 != nil || err2 != nil || was != is
}

// limits returns the quotas in a namespace that limit something that e measures.
func (c *Controller) limits(namespace string, e quotav1.Evaluator) []*corev1.ResourceQuota {
	all, err := c.lister.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []*corev1.ResourceQuota
	for _, q := range all {
		if len(e.MatchingResources(quotav1.ResourceNames(q.Spec.Hard))) > 0 {
			out = append(out, q)
		}
	}
	return out
}

// sync counts the usage of the quota with the key and updates its status. It keeps the former usage of resources that
// could not be counted, and returns the error.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	q, err := c.lister.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.startCounting(ctx, q); err != nil {
		return err
	}
	// The status is updated with all successful counts, even if some failed.
	counted, countErr := quotav1.CalculateUsage(namespace, q.Spec.Scopes, q.Spec.Hard, c.evaluators, q.Spec.ScopeSelector)
	used := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		if n, ok := counted[name]; ok {
			used[name] = n
		} else if n, ok := q.Status.Used[name]; ok {
			used[name] = n
		}
	}
	if q.Status.Hard != nil && q.Status.Used != nil && equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) && quotav1.Equals(used, q.Status.Used) {
		return countErr
	}
	next := q.DeepCopy()
	next.Status = corev1.ResourceQuotaStatus{Hard: next.Spec.Hard.DeepCopy(), Used: used}
	if next.Status.Hard == nil {
		next.Status.Hard = corev1.ResourceList{}
	}
	if _, err := c.env.Kube.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return countErr
}
