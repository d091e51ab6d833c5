// Package resourcequota counts what the objects of each namespace use of its
// ResourceQuotas. Admission reserves usage before an object is stored; this
// package gives it back when objects go, end or shrink, and puts right what was
// reserved for objects that were never stored.
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
	"hyperkube/internal/quota"
)

// settle is how long after usage was reserved it is counted: what it was
// reserved for is stored by then, or never will be.
const settle = 10 * time.Second

// Informer gives an informer of a resource whose objects have at least their
// metadata, with an index by namespace. It runs already, or is started to run
// until ctx ends.
type Informer func(ctx context.Context, gvr schema.GroupVersionResource, kind schema.GroupVersionKind) (cache.SharedIndexInformer, error)

// Config says how to find and count resources that have no name of their own in
// quotas, but only count/.
type Config struct {
	// Discovery tells what there is. Nil: nothing else is counted.
	Discovery discovery.DiscoveryInterface
	// Metadata is watched if Informer is nil.
	Metadata metadata.Interface
	Informer Informer
}

// Controller counts. Make it with New.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	lister     corelisters.ResourceQuotaLister
	evaluators quotav1.Registry
	// informers that this controller started itself.
	informers sync.WaitGroup

	mu sync.Mutex
	// followed are the resources that are counted besides those of
	// quota.Counted. Guarded by mu.
	followed map[schema.GroupResource]followed
	// defined: definitions of custom resources are followed. Guarded by mu.
	defined bool
}

// followed is a resource that is counted since a quota named it.
type followed struct {
	informer  cache.SharedIndexInformer
	evaluator quotav1.Evaluator
	// stop ends the informer, unless others use it.
	stop context.CancelFunc
}

// New makes the controller.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	quotas := env.Informers.Core().V1().ResourceQuotas()
	c := &Controller{
		env:      env,
		cfg:      cfg,
		lister:   quotas.Lister(),
		followed: map[schema.GroupResource]followed{},
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
		return in(counted[gvr.Resource], namespace)
	}, env.Clock.Now)
	for _, gvr := range quota.Counted() {
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
				c.AddAfter(q.Namespace+"/"+q.Name, settle)
			}
		}, nil))
}

// in lists an informer's objects in a namespace.
func in(informer cache.SharedIndexInformer, namespace string) ([]runtime.Object, error) {
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

// Run works until ctx ends and all informers that were started have, too.
func (c *Controller) Run(ctx context.Context) error {
	defer c.informers.Wait()
	return c.Loop.Run(ctx)
}

// replenish makes the handler of a resource's events. New objects have been
// reserved for.
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
				if changed || moved(e, q, old, cur) {
					c.AddObject(q)
				}
			}
			if p, ok := b.(*corev1.Pod); ok && p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
				// A pod that is late to go counts no more.
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

// moved tells whether an object has come into the scopes of a quota or left them,
// as a pod does that gets a deadline.
func moved(e quotav1.Evaluator, q *corev1.ResourceQuota, old, cur runtime.Object) bool {
	was, err1 := e.Matches(q, old)
	is, err2 := e.Matches(q, cur)
	return err1 != nil || err2 != nil || was != is
}

// limits are the quotas of a namespace that limit what e measures.
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

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	q, err := c.lister.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.follow(ctx, q); err != nil {
		return err
	}
	// What could be counted is written although something could not.
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
