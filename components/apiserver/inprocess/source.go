// Package inprocess provides data for informers in the API server's own process directly from the
// watch cache: they share objects that are decoded only once and neither encoded nor copied.
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

// Source implements client.Source: it feeds informers from the watch cache of the API server in the
// same process. It is safe for concurrent use.
type Source struct {
	registry *registry.Registry
	log      *slog.Logger

	mu sync.Mutex
	// keepManagedFields contains, for each requested kind, whether an informer needs objects with
	// their managed fields.
	keepManagedFields map[schema.GroupVersionKind]*atomic.Bool
}

// New returns a source for the resources that reg serves. log receives errors about unreadable
// objects; it may be nil.
func New(reg *registry.Registry, log *slog.Logger) *Source {
	if log == nil {
		log = slog.Default()
	}
	return &Source{registry: reg, log: log, keepManagedFields: map[schema.GroupVersionKind]*atomic.Bool{}}
}

// ListWatch implements client.Source. The objects of the kind have their managed fields, from then on also for
// informers of Trimmed. It returns false if the registry does not serve or store the kind.
func (s *Source) ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool) {
	l, ok := s.listWatch(gvk)
	if !ok {
		return nil, false
	}
	l.keepManagedFields.Store(true)
	return l, true
}

// listWatch returns a listWatch of a kind, or false if the registry does not serve or store it.
func (s *Source) listWatch(gvk schema.GroupVersionKind) (*listWatch, bool) {
	resource := s.registry.Kind(gvk)
	if resource == nil || resource.Collection == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	whole := s.keepManagedFields[gvk]
	if whole == nil {
		whole = new(atomic.Bool)
		s.keepManagedFields[gvk] = whole
	}
	return &listWatch{registry: s.registry, kind: gvk, resource: resource, keepManagedFields: whole, log: s.log}, true
}

// Trimmed is a client.Source of the same objects without their managed fields, which controllers do
// not need. As in upstream's controllers, removing them saves a quarter of a pod's memory. Kinds
// that are also requested from the Source itself are not trimmed, so that no object is kept twice.
type Trimmed struct{ source *Source }

// Trimmed returns a client.Source that feeds informers with the same objects without their managed fields.
func (s *Source) Trimmed() Trimmed { return Trimmed{s} }

// ListWatch implements client.Source. The objects of the kind have no managed fields, unless an informer of the
// Source itself uses the same kind. It returns false if the registry does not serve or store the kind.
func (t Trimmed) ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool) {
	l, ok := t.source.listWatch(gvk)
	if !ok {
		return nil, false
	}
	return l, true
}

// listWatch lists and watches all objects of one resource. It streams initial lists, so that no
// list object is created.
type listWatch struct {
	registry *registry.Registry
	kind     schema.GroupVersionKind
	resource *registry.Resource
	// keepManagedFields is set if objects must be complete. It is checked at each read.
	keepManagedFields *atomic.Bool
	log               *slog.Logger
}

// current returns a copy of l with the resource that is served now, because the definition of a
// custom resource may have changed. It returns a NotFound error if the kind is not served anymore.
func (l *listWatch) current() (*listWatch, error) {
	resource := l.registry.Kind(l.kind)
	if resource == nil {
		return nil, apierrors.NewNotFound(l.resource.GroupResource(), "")
	}
	again := *l
	again.resource = resource
	return &again, nil
}

// List implements cache.ListerWatcher. It calls ListWithContext with a context that is never canceled.
func (l *listWatch) List(opts metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), opts)
}

// Watch implements cache.ListerWatcher. It calls WatchWithContext with a context that is never canceled.
func (l *listWatch) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), opts)
}

// ListWithContext returns a list of all objects that includes all completed writes. The items are shallow copies of
// the shared objects. Objects that cannot be decoded are omitted. The options are ignored.
func (l *listWatch) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	l, err := l.current()
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

// read returns the decoded, shared object in e, an entry of the watch cache. If it cannot be decoded, read logs the
// error and returns nil, so that the other objects are not affected.
func (l *listWatch) read(e *store.Entry) api.Object {
	read := l.resource.Trimmed
	if l.keepManagedFields.Load() {
		read = l.resource.Share
	}
	obj, err := read(e)
	if err != nil {
		l.log.Error("object in etcd cannot be decoded; admission plugins, and controllers and the scheduler in the process of this API server, do not see it: restore its encryption key and restart the API server, or delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential", "resource", l.resource.GroupResource().String(), "key", e.Key(), "err", err)
		return nil
	}
	return obj
}

// WatchWithContext starts a watch. It first sends the existing objects if opts requests them or contains no resource
// version, with a bookmark after them if requested, and then all changes. It returns an Expired error if the resource
// version is too old, and NotFound if the kind is not served anymore.
func (l *listWatch) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	l, err := l.current()
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
	s.running.Go(func() {
		defer close(s.events)
		defer w.Close()
		s.run(ctx, w, initial, since, streamed)
	})
	return s, nil
}

// stream is one watch of a listWatch. A goroutine sends its events until it is stopped.
type stream struct {
	*listWatch
	cancel  context.CancelFunc
	events  chan watch.Event
	running sync.WaitGroup
}

// ResultChan implements watch.Interface. The channel is closed when the watch ends.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface. The watch has stopped when it returns.
func (s *stream) Stop() {
	s.cancel()
	s.running.Wait()
}

// run sends the initial entries, the bookmark at the revision since if streamed is set, and then the changes that w
// reports, until ctx is canceled. If w fails, it sends an Expired error, after which the informer lists again.
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

// event converts a change to a watch event. It returns false if the object cannot be decoded. A deleted object has
// the revision of the deletion.
func (s *stream) event(e *store.Event) (watch.Event, bool) {
	if e.Current == nil {
		obj := s.read(e.Previous)
		if obj == nil {
			return watch.Event{}, false
		}
		// The deletion has its own revision, which cannot be set on the shared object.
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

// send sends an event. It returns false if ctx is done first.
func (s *stream) send(ctx context.Context, e watch.Event) bool {
	select {
	case s.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
