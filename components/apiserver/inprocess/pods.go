package inprocess

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// Pods reads pods from the watch cache for authorization and admission. An informer would serve the
// same purpose, but would keep every pod of the cluster decoded although only a few are needed. It
// is safe for concurrent use.
type Pods struct {
	resource *registry.Resource
	log      *slog.Logger
}

// NewPods returns a reader of the pods that reg serves. It returns an error if reg does not serve
// pods. log may be nil.
func NewPods(reg *registry.Registry, log *slog.Logger) (*Pods, error) {
	if log == nil {
		log = slog.Default()
	}
	resource := reg.Lookup(corev1.SchemeGroupVersion.WithResource("pods"))
	if resource == nil || resource.Collection == nil {
		return nil, errors.New("pods are not served")
	}
	return &Pods{resource: resource, log: log}, nil
}

// Pod returns a pod from the watch cache without blocking. It returns false if the pod is not in the cache or cannot
// be decoded. The cache may lag behind, so callers should then request the pod from the API. The pod is shared and
// must not be modified.
func (p *Pods) Pod(namespace, name string) (*corev1.Pod, bool) {
	e := p.resource.Collection.Cached(p.resource.Key(namespace, name))
	if e == nil {
		return nil, false
	}
	obj, err := p.resource.Read(e)
	if err != nil {
		return nil, false
	}
	pod, ok := obj.(*corev1.Pod)
	return pod, ok
}

// ListPods returns the pods of a namespace from the watch cache, without those that cannot be decoded. They are
// shared and must not be modified.
func (p *Pods) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	page, err := p.resource.Collection.List(ctx, store.ListOptions{Prefix: namespace + "/"})
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(page.Entries))
	for _, e := range page.Entries {
		if pod := p.read(e); pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// read decodes the pod in e, an entry of the watch cache, without caching the result. It returns nil, after logging
// the error, if that fails.
func (p *Pods) read(e *store.Entry) *corev1.Pod {
	obj, err := p.resource.Peek(e)
	if err != nil {
		p.log.Error("pod in etcd cannot be decoded; authorization and admission of this API server ignore the pod: restore its encryption key and restart the API server, or delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential", "pod", e.Key(), "err", err)
		return nil
	}
	pod, _ := obj.(*corev1.Pod)
	return pod
}

// Follow reports all pods that are assigned to a node, and their changes, until ctx is canceled. It calls set for
// each such pod and each change, removed when a pod is deleted (even if it was not passed to set), and listed once
// set was called for all existing pods. listed gets a function that reports whether a pod exists; pods for which it
// returns false were deleted meanwhile. If the watch expires, Follow starts again with calls of set and listed. It
// returns other errors of the watch cache. All calls are made by one goroutine.
func (p *Pods) Follow(ctx context.Context, set func(*corev1.Pod), removed func(namespace, name string), listed func(is func(namespace, name string) bool)) error {
	for ctx.Err() == nil {
		err := p.follow(ctx, set, removed, listed)
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrTooOld) {
			return fmt.Errorf("watching pods: %w", err)
		}
	}
	return nil
}

// follow does the same as Follow, but returns the first error, for example store.ErrTooOld if the watch has expired.
// Follow then calls it again.
func (p *Pods) follow(ctx context.Context, set func(*corev1.Pod), removed func(namespace, name string), listed func(func(namespace, name string) bool)) error {
	collection := p.resource.Collection
	page, err := collection.List(ctx, store.ListOptions{})
	if err != nil {
		return err
	}
	w, err := collection.Watch(ctx, store.WatchOptions{Since: page.Revision})
	if err != nil {
		return err
	}
	defer w.Close()
	apply := func(e *store.Entry) {
		// Most changes of unassigned pods are irrelevant.
		if node, ok := p.resource.FieldOf(e, p.resource.Direct["spec.nodeName"]); ok && node == "" {
			return
		}
		if pod := p.read(e); pod != nil {
			set(pod)
		}
	}
	entries := page.Entries
	for _, e := range entries {
		apply(e)
	}
	listed(func(namespace, name string) bool {
		_, found := slices.BinarySearchFunc(entries, p.resource.Key(namespace, name), func(e *store.Entry, key string) int {
			return strings.Compare(e.Key(), key)
		})
		return found
	})
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for i := range batch.Events {
			if ev := &batch.Events[i]; ev.Current != nil {
				apply(ev.Current)
			} else {
				namespace, name, _ := strings.Cut(ev.Previous.Key(), "/")
				removed(namespace, name)
			}
		}
	}
}
