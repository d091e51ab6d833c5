// Package inprocess feeds the informers of the API server's own process
// straight from the watch cache: they get objects that are decoded once for all
// of them, neither encoded nor copied.
package inprocess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Source is a client.Source over a registry.
type Source struct {
	registry *registry.Registry
	log      *slog.Logger

	mu sync.Mutex
	// whole are the kinds of which somebody has asked for whole objects.
	whole map[schema.GroupVersionKind]*atomic.Bool
}

// New returns a source of what reg serves.
func New(reg *registry.Registry, log *slog.Logger) *Source {
	if log == nil {
		log = slog.Default()
	}
	return &Source{registry: reg, log: log, whole: map[schema.GroupVersionKind]*atomic.Bool{}}
}

// ListWatch as client.Source.
func (s *Source) ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool) {
	l, ok := s.listWatch(gvk)
	if !ok {
		return nil, false
	}
	l.whole.Store(true)
	return l, true
}

func (s *Source) listWatch(gvk schema.GroupVersionKind) (*listWatch, bool) {
	resource := s.registry.Kind(gvk)
	if resource == nil || resource.Collection == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	whole := s.whole[gvk]
	if whole == nil {
		whole = new(atomic.Bool)
		s.whole[gvk] = whole
	}
	return &listWatch{registry: s.registry, kind: gvk, resource: resource, whole: whole, log: s.log}, true
}

// Trimmed is a client.Source of the same objects without their managed fields,
// which controllers have no use for, as those of Kubernetes: they are a quarter of
// a pod's memory. Kinds that somebody gets from the Source itself come whole, so
// that nothing is kept twice.
type Trimmed struct{ source *Source }

// Trimmed returns the source of trimmed objects.
func (s *Source) Trimmed() Trimmed { return Trimmed{s} }

// ListWatch as client.Source.
func (t Trimmed) ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool) {
	l, ok := t.source.listWatch(gvk)
	if !ok {
		return nil, false
	}
	return l, true
}

// listWatch lists and watches all objects of one resource. It serves initial
// lists as streams, in which no list is ever made.
type listWatch struct {
	registry *registry.Registry
	kind     schema.GroupVersionKind
	resource *registry.Resource
	// whole tells whether objects are to be whole, now that one is read.
	whole *atomic.Bool
	log   *slog.Logger
}

// now is l for what is served now: the definition of a custom resource may
// have changed since, or gone.
func (l *listWatch) now() (*listWatch, error) {
	resource := l.registry.Kind(l.kind)
	if resource == nil {
		return nil, apierrors.NewNotFound(l.resource.GroupResource(), "")
	}
	again := *l
	again.resource = resource
	return &again, nil
}

// List as cache.ListerWatcher.
func (l *listWatch) List(opts metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), opts)
}

// Watch as cache.ListerWatcher.
func (l *listWatch) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), opts)
}

// ListWithContext returns all objects; the items of the list are copies of the
// shared ones as far as Go's assignment copies.
func (l *listWatch) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	l, err := l.now()
	if err != nil {
		return nil, err
	}
	page, err := l.resource.Collection.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", l.resource.GroupResource(), err)
	}
	objects := make([]runtime.Object, 0, len(page.Entries))
	for _, e := range page.Entries {
		if obj := l.read(e); obj != nil {
			objects = append(objects, obj)
		}
	}
	list := l.resource.NewList()
	if err := meta.SetList(list, objects); err != nil {
		return nil, fmt.Errorf("listing %s: %w", l.resource.GroupResource(), err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", l.resource.GroupResource(), err)
	}
	accessor.SetResourceVersion(strconv.FormatInt(page.Revision, 10))
	return list, nil
}

// read returns the object of an entry, or nil when it cannot be read: it must
// not take all others of its kind with it.
func (l *listWatch) read(e *store.Entry) api.Object {
	read := l.resource.Trimmed
	if l.whole.Load() {
		read = l.resource.Share
	}
	obj, err := read(e)
	if err != nil {
		l.log.Error("an object cannot be read and is left out", "resource", l.resource.GroupResource().String(), "key", e.Key(), "err", err)
		return nil
	}
	return obj
}

// WatchWithContext sends what is there, if that is asked for, a bookmark, and
// then what changes.
func (l *listWatch) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	l, err := l.now()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{listWatch: l, cancel: cancel, events: make(chan watch.Event, 64)}
	since, err := strconv.ParseInt(cmp.Or(opts.ResourceVersion, "0"), 10, 64)
	if err != nil {
		cancel()
		return nil, apierrors.NewBadRequest(fmt.Sprintf("resource version %q: %v", opts.ResourceVersion, err))
	}
	var initial []*store.Entry
	streamed := ptr.Deref(opts.SendInitialEvents, false)
	if streamed || since == 0 {
		page, err := l.resource.Collection.List(ctx, store.ListOptions{Revision: -1})
		if err != nil {
			cancel()
			return nil, fmt.Errorf("watching %s: %w", l.resource.GroupResource(), err)
		}
		initial, since = page.Entries, page.Revision
	}
	w, err := l.resource.Collection.Watch(ctx, store.WatchOptions{Since: since})
	if err != nil {
		cancel()
		if errors.Is(err, store.ErrTooOld) {
			return nil, apierrors.NewResourceExpired(err.Error())
		}
		return nil, fmt.Errorf("watching %s: %w", l.resource.GroupResource(), err)
	}
	s.ended.Go(func() {
		defer close(s.events)
		defer w.Close()
		s.run(ctx, w, initial, since, streamed)
	})
	return s, nil
}

// stream is one watch.
type stream struct {
	*listWatch
	cancel context.CancelFunc
	events chan watch.Event
	ended  sync.WaitGroup
}

// ResultChan as watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop as watch.Interface; the watch has ended when it returns.
func (s *stream) Stop() {
	s.cancel()
	s.ended.Wait()
}

func (s *stream) run(ctx context.Context, w *store.Watcher, initial []*store.Entry, since int64, streamed bool) {
	for _, e := range initial {
		if obj := s.read(e); obj != nil && !s.send(ctx, watch.Event{Type: watch.Added, Object: obj}) {
			return
		}
	}
	if streamed {
		mark := s.resource.New()
		mark.SetResourceVersion(strconv.FormatInt(since, 10))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if !s.send(ctx, watch.Event{Type: watch.Bookmark, Object: mark}) {
			return
		}
	}
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				status := apierrors.NewResourceExpired(err.Error()).Status()
				s.send(ctx, watch.Event{Type: watch.Error, Object: &status})
			}
			return
		}
		for i := range batch.Events {
			event, ok := s.event(&batch.Events[i])
			if ok && !s.send(ctx, event) {
				return
			}
		}
	}
}

// event makes the event that informers know.
func (s *stream) event(e *store.Event) (watch.Event, bool) {
	if e.Current == nil {
		obj := s.read(e.Previous)
		if obj == nil {
			return watch.Event{}, false
		}
		// A deletion has a revision of its own, which the shared object
		// cannot be given.
		gone := obj.DeepCopyObject().(api.Object)
		gone.SetResourceVersion(strconv.FormatInt(e.Revision, 10))
		return watch.Event{Type: watch.Deleted, Object: gone}, true
	}
	obj := s.read(e.Current)
	if obj == nil {
		return watch.Event{}, false
	}
	if e.Previous == nil {
		return watch.Event{Type: watch.Added, Object: obj}, true
	}
	return watch.Event{Type: watch.Modified, Object: obj}, true
}

func (s *stream) send(ctx context.Context, e watch.Event) bool {
	select {
	case s.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
