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

	"hyperkube/internal/quota"
)

const (
	countPrefix = "count/"
	// rediscover is how long after a resource was not found it is looked for
	// again.
	rediscover = time.Minute
	// patience is how long a quota waits for the first list of a resource before
	// others have their turn.
	patience = 5 * time.Second
)

// follow begins to count the resources of q that only count/ names, and waits
// until they are known.
func (c *Controller) follow(ctx context.Context, q *corev1.ResourceQuota) error {
	if c.cfg.Discovery == nil {
		return nil
	}
	for name := range q.Spec.Hard {
		gr, ok := measured(name)
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
		case <-time.After(patience):
			return fmt.Errorf("counting %s: not listed yet", gr)
		}
	}
	return c.lookAgain(q)
}

// measured returns the resource whose objects a name is about, of those that are
// not counted all along.
func measured(name corev1.ResourceName) (gr schema.GroupResource, ok bool) {
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

// lookAgain asks for q to be looked at later if it limits what is not there.
func (c *Controller) lookAgain(q *corev1.ResourceQuota) error {
	for name := range q.Spec.Hard {
		if gr, ok := measured(name); ok && c.evaluators.Get(gr) == nil {
			c.AddAfter(q.Namespace+"/"+q.Name, rediscover)
			return nil
		}
	}
	return nil
}

// informer returns the informer by which gr is counted; nil if it has been
// counted all along, or is not there.
func (c *Controller) informer(ctx context.Context, gr schema.GroupResource) (cache.SharedIndexInformer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.followed[gr]; ok {
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
	list := func(namespace string) ([]runtime.Object, error) { return in(i, namespace) }
	e := quota.Count(gr, list)
	if gr == quota.DeviceClaims && gvr.Version == "v1" {
		// What they ask for is measured, not only how many there are.
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
	c.followed[gr] = followed{i, e, stop}
	return i, nil
}

// devices is what claims are measured by.
func (c *Controller) devices(claims cache.SharedIndexInformer) quota.Devices {
	classes := c.env.Informers.Resource().V1().DeviceClasses()
	classes.Informer() // so that it is started
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
			found, err := in(claims, namespace)
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

// discover finds where gr is, in the version that its group prefers if it is in
// that.
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

func countable(verbs metav1.Verbs) bool {
	for _, v := range []string{"create", "list", "watch", "delete"} {
		if !slices.Contains(verbs, v) {
			return false
		}
	}
	return true
}

// watchMetadata is the Informer of who has none.
func (c *Controller) watchMetadata(ctx context.Context, gvr schema.GroupVersionResource, _ schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
	i := metadatainformer.NewFilteredMetadataInformer(c.cfg.Metadata, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	c.informers.Go(func() { i.RunWithContext(ctx) })
	return i, nil
}
