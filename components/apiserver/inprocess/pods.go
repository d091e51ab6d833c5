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

// Pods reads pods from the watch cache for those who decide about requests.
// An informer would do the same, and keep every pod of the cluster decoded for
// the few that are ever asked for. Its methods are safe for several goroutines.
type Pods struct {
	resource *registry.Resource
	log      *slog.Logger
}

// NewPods returns the pods that reg serves. Log may be nil.
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

// Pod returns a pod as the cache has it, without any wait. Whoever is told that
// there is none asks the API: the cache may be a moment behind. The pod is
// shared, and nobody may write to it.
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

// ListPods returns the pods of a namespace as the cache has them. They are
// shared, and nobody may write to them.
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

// read is for pods that are looked at once. It returns nil for what cannot be
// read, which is logged.
func (p *Pods) read(e *store.Entry) *corev1.Pod {
	obj, err := p.resource.Peek(e)
	if err != nil {
		p.log.Error("a pod cannot be read", "key", e.Key(), "err", err)
		return nil
	}
	pod, _ := obj.(*corev1.Pod)
	return pod
}

// Follow calls set for all pods that are on a node, and again when one of them
// changes; removed when a pod is gone, whether it was told of or not; and listed
// once all that there were have been told. When its place in the cache's history
// is lost it begins again, set and listed included: those that is tells false of
// are gone then. One goroutine makes the calls. It returns when ctx ends.
func (p *Pods) Follow(ctx context.Context, set func(*corev1.Pod), removed func(namespace, name string), listed func(is func(namespace, name string) bool)) error {
	for ctx.Err() == nil {
		err := p.follow(ctx, set, removed, listed)
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrTooOld) {
			return fmt.Errorf("following the pods of nodes: %w", err)
		}
	}
	return nil
}

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
	tell := func(e *store.Entry) {
		// Most that happens to a pod before it has a node is of no interest.
		if node, ok := p.resource.FieldOf(e, p.resource.Direct["spec.nodeName"]); ok && node == "" {
			return
		}
		if pod := p.read(e); pod != nil {
			set(pod)
		}
	}
	entries := page.Entries
	for _, e := range entries {
		tell(e)
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
				tell(ev.Current)
			} else {
				namespace, name, _ := strings.Cut(ev.Previous.Key(), "/")
				removed(namespace, name)
			}
		}
	}
}
