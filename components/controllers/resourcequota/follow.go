package resourcequota

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/api/quota"
)

const (
	// countPrefix is the prefix of the names with which quotas limit the number of objects of a resource.
	countPrefix = "count/"
	// rediscover is the delay before discovery is repeated for a resource that was not found.
	rediscover = time.Minute
	// listTimeout is how long the sync of a quota waits for the initial list of a resource.
	listTimeout = 5 * time.Second
)

// startCounting starts to count the resources that q limits with count/, and waits until they are listed. It returns an
// error if this takes longer than listTimeout. Resources that are not served are looked up again later. Without
// Config.Discovery it does nothing.
func (c *Controller) startCounting(ctx context.Context, q *corev1.ResourceQuota) error {
	if c.cfg.Discovery == nil {
		return nil
	}
	for name := range q.Spec.Hard {
		gr, ok := countedResource(name)
		if !ok {
			continue
		}
		i, err := c.informer(ctx, gr)
		if err != nil {
			return fmt.Errorf("counting %s: %w", gr, err)
		}
		if i == nil {
			continue
		}
		select {
		case <-i.HasSyncedChecker().Done():
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(listTimeout):
			return fmt.Errorf("counting %s: not listed yet", gr)
		}
	}
	return c.requeueMissing(q)
}

// countedResource returns the resource whose objects must be counted for a limit with the name. ok is false if the name
// limits no resource, or one that quotas ignore.
func countedResource(name corev1.ResourceName) (gr schema.GroupResource, ok bool) {
	if quota.MayCountDevices(name) {
		return quota.DeviceClaims, true
	}
	text, ok := strings.CutPrefix(string(name), countPrefix)
	if !ok {
		return gr, false
	}
	gr = schema.ParseGroupResource(text)
	return gr, !quota.Ignored(gr)
}

// requeueMissing schedules another sync of q if q limits a resource that is not counted, because the API server does
// not serve it.
func (c *Controller) requeueMissing(q *corev1.ResourceQuota) error {
	for name := range q.Spec.Hard {
		if gr, ok := countedResource(name); ok && c.evaluators.Get(gr) == nil {
			c.AddAfter(q.Namespace+"/"+q.Name, rediscover)
			return nil
		}
	}
	return nil
}

// informer returns the informer of gr, which it starts if necessary. It returns nil if gr is always counted, or is not
// served.
func (c *Controller) informer(ctx context.Context, gr schema.GroupResource) (cache.SharedIndexInformer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.dynamic[gr]; ok {
		return f.informer, nil
	}
	if c.evaluators.Get(gr) != nil {
		return nil, nil
	}
	gvr, kind, ok, err := c.discover(gr)
	if err != nil || !ok {
		return nil, err
	}
	if !scheme.Scheme.Recognizes(kind) {
		if err := c.followDefinitions(ctx); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	var i cache.SharedIndexInformer
	list := func(namespace string) ([]runtime.Object, error) { return inNamespace(i, namespace) }
	e := quota.Count(gr, list)
	if gr == quota.DeviceClaims && gvr.Version == "v1" {
		// Claims are measured by the devices they request, not only counted.
		i = c.env.Informers.Resource().V1().ResourceClaims().Informer()
		e = quota.Claims(list, c.devices(i))
		c.env.Informers.Start(ctx.Done())
	} else if i, err = c.cfg.Informer(ctx, gvr, kind); err != nil {
		stop()
		return nil, err
	}
	if _, err := i.AddEventHandler(c.replenish(e)); err != nil {
		stop()
		return nil, err
	}
	c.evaluators.Add(e)
	c.dynamic[gr] = dynamicResource{i, e, stop}
	return i, nil
}

// devices returns the functions with which claims are measured. claims is the informer of ResourceClaims.
func (c *Controller) devices(claims cache.SharedIndexInformer) quota.Devices {
	classes := c.env.Informers.Resource().V1().DeviceClasses()
	classes.Informer() // request the informer, so that it is started
	pods := c.env.Informers.Core().V1().Pods().Lister()
	return quota.Devices{
		Classes: func() ([]*resourcev1.DeviceClass, error) { return classes.Lister().List(labels.Everything()) },
		Pod: func(namespace, name string) (*corev1.Pod, error) {
			p, err := pods.Pods(namespace).Get(name)
			if apierrors.IsNotFound(err) {
				return nil, nil
			}
			return p, err
		},
		Claims: func(namespace string) ([]*resourcev1.ResourceClaim, error) {
			found, err := inNamespace(claims, namespace)
			var out []*resourcev1.ResourceClaim
			for _, o := range found {
				if claim, ok := o.(*resourcev1.ResourceClaim); ok {
					out = append(out, claim)
				}
			}
			return out, err
		},
		Now: c.env.Clock.Now,
	}
}

// discover returns the version and kind of gr, in the preferred version of the group if that version serves gr. ok is
// false if no version serves gr, or its objects cannot be counted.
func (c *Controller) discover(gr schema.GroupResource) (gvr schema.GroupVersionResource, kind schema.GroupVersionKind, ok bool, err error) {
	groups, lists, err := c.cfg.Discovery.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return gvr, kind, false, err
	}
	preferred := ""
	for _, g := range groups {
		if g.Name == gr.Group {
			preferred = g.PreferredVersion.Version
		}
	}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || gv.Group != gr.Group || ok && gv.Version != preferred {
			continue
		}
		for _, r := range l.APIResources {
			if r.Name == gr.Resource && r.Namespaced && countable(r.Verbs) {
				gvr, kind, ok = gv.WithResource(r.Name), gv.WithKind(r.Kind), true
			}
		}
	}
	return gvr, kind, ok, nil
}

// countable reports whether the verbs of a resource include all those that counting its objects requires.
func countable(verbs metav1.Verbs) bool {
	for _, v := range []string{"create", "list", "watch", "delete"} {
		if !slices.Contains(verbs, v) {
			return false
		}
	}
	return true
}

// watchMetadata is the Informer that is used if none is configured. It starts an informer of the metadata of all
// objects of a resource.
func (c *Controller) watchMetadata(ctx context.Context, gvr schema.GroupVersionResource, _ schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
	i := metadatainformer.NewFilteredMetadataInformer(c.cfg.Metadata, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	c.informers.Go(func() { i.RunWithContext(ctx) })
	return i, nil
}
