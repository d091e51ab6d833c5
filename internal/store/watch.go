package store

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
)

// errClosed: Next was called after Close.
var errClosed = fmt.Errorf("watcher is closed: %w", ErrStopped)

// Watcher is a place in a collection's history.
type Watcher struct {
	collection *Collection
	opts       WatchOptions
	// wake has a token when there may be something for Next.
	wake chan struct{}
	// progress was asked for.
	progress atomic.Bool
	// found and events are reused by Next.
	found, events []Event

	// What follows is guarded by the collection's lock.

	// pending: event number first and those after it have not been looked
	// at. Without it, no event up to now concerns the watcher.
	pending bool
	first   uint64
	// since: events up to this revision are not wanted.
	since int64
	// err ends the watch.
	err error
	// list is where in the index the watcher is, index its place there.
	list  *[]*Watcher
	index int
}

// maxBatch is after how many events a batch ends, once their revision does.
const maxBatch = 256

// Watch begins a watch. ErrTooOld when the ring no longer has the events after
// opts.Since. The watcher must be closed. ctx is for the beginning only.
func (c *Collection) Watch(ctx context.Context, opts WatchOptions) (*Watcher, error) {
	if err := c.fill(ctx); err != nil {
		return nil, fmt.Errorf("watching %s: %w", c.cfg.Resource, err)
	}
	w := &Watcher{collection: c, opts: opts, wake: make(chan struct{}, 1)}
	begun, err := w.begin()
	if !begun && err == nil {
		if err = c.replay(ctx, opts.Since); err == nil {
			begun, err = w.begin()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", c.cfg.Resource, err)
	}
	if begun {
		return w, nil
	}
	c.mu.Lock()
	start := c.ring.start
	c.mu.Unlock()
	return nil, fmt.Errorf("watching %s: %w", c.cfg.Resource, &TooOldError{Since: opts.Since, Oldest: start})
}

// begin takes the watcher's place, or returns false when that is gone.
func (w *Watcher) begin() (bool, error) {
	c := w.collection
	position := c.store.position.get()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isDropped() {
		return false, ErrStopped // those who watch have been told already
	}
	w.since = w.opts.Since
	switch {
	case w.since == 0:
		w.since = max(position, c.revision)
	case w.since < c.ring.start:
		return false, nil
	case w.since < c.revision:
		w.first = c.ring.after(w.since)
		w.pending = w.first < c.ring.next
	}
	c.watchers.add(w)
	return true, nil
}

// Next blocks until there is something after the watcher's place, or progress
// was asked for, or ctx ends. ErrTooOld when the watcher was too slow and its
// place is gone from the ring: the watch is over then. It is for one goroutine.
func (w *Watcher) Next(ctx context.Context) (Batch, error) {
	for {
		batch, err := w.take()
		if err != nil || len(batch.Events) > 0 {
			return batch, err
		}
		if w.progress.Swap(false) {
			if err := w.collection.reach(ctx, -1); err == nil {
				return w.take()
			} else if ctx.Err() != nil {
				return Batch{}, err
			}
			// Without etcd there is no progress to tell.
		}
		select {
		case <-w.wake:
		case <-w.collection.store.done:
			return Batch{}, ErrStopped
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// take returns what there is now.
func (w *Watcher) take() (Batch, error) {
	c := w.collection
	for {
		position := c.store.position.get()
		c.mu.Lock()
		if w.err != nil {
			c.mu.Unlock()
			return Batch{}, w.err
		}
		revision := max(position, c.revision, w.since)
		clear(w.found) // who waits for long keeps nothing of it
		w.found = w.found[:0]
		more := false
		if w.pending {
			if w.first < c.ring.first {
				w.err = fmt.Errorf("watching %s: %w: the watcher is too slow", c.cfg.Resource, ErrTooOld)
				c.watchers.remove(w)
				c.mu.Unlock()
				c.slow.Add(1)
				return Batch{}, w.err
			}
			revision, more = w.collect(revision)
		}
		c.mu.Unlock()

		events := w.found
		if match := w.opts.Match; match != nil {
			clear(w.events)
			events = w.events[:0]
			for i := range w.found {
				ev := &w.found[i]
				if ev.Current != nil && match(ev.Current) || ev.Previous != nil && match(ev.Previous) {
					events = append(events, *ev)
				}
			}
			w.events = events
		}
		if len(events) > 0 || !more {
			return Batch{Events: events, Revision: revision}, nil
		}
	}
}

// collect copies the events that concern the watcher, as far as key and prefix
// tell, and moves its place. It returns up to which revision the watcher has
// seen everything then, and whether there is more.
func (w *Watcher) collect(revision int64) (int64, bool) {
	r := &w.collection.ring
	n := w.first
	for ; n < r.next; n++ {
		ev := r.at(n)
		if len(w.found) >= maxBatch && ev.Revision != r.at(n-1).Revision {
			w.first = n
			return r.at(n - 1).Revision, true
		}
		if ev.Revision > w.since && w.concerns(ev.key()) {
			w.found = append(w.found, *ev)
		}
	}
	w.pending = false
	return revision, false
}

func (ev *Event) key() string {
	if ev.Current != nil {
		return ev.Current.key
	}
	return ev.Previous.key
}

func (w *Watcher) concerns(key string) bool {
	if w.opts.Key != "" {
		return key == w.opts.Key
	}
	return strings.HasPrefix(key, w.opts.Prefix)
}

// RequestProgress makes Next return soon, with no events if there are none but
// with a Revision at least as new as etcd's when this was called. Safe from
// any goroutine.
func (w *Watcher) RequestProgress() {
	w.progress.Store(true)
	signal(w.wake)
}

// Tell sends nil to changed whenever something has happened, and at last the error with
// which the watch is over, until ctx ends: for who reads again what is watched and selects
// among more than this. It calls Next, and is for one goroutine as that is.
func (w *Watcher) Tell(ctx context.Context, changed chan<- error) {
	for {
		_, err := w.Next(ctx)
		select {
		case changed <- err:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Close ends the watch and frees its place. Safe from any goroutine and more
// than once.
func (w *Watcher) Close() {
	c := w.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.err == nil {
		w.err = errClosed
		c.watchers.remove(w)
	}
	signal(w.wake)
}

// watcherIndex finds the watchers that an event concerns, as far as its key
// tells. The zero value is empty.
type watcherIndex struct {
	all []*Watcher
	// byKey and byNamespace have those with a Key, or with a Prefix that
	// ends with its only slash.
	byKey, byNamespace map[string]*[]*Watcher
	// byIndex has those with an Index, by its place and their Value.
	byIndex []map[string]*[]*Watcher
	// others have other prefixes.
	others []*Watcher
}

func (x *watcherIndex) add(w *Watcher) {
	bucket := func(m *map[string]*[]*Watcher, name string) *[]*Watcher {
		if *m == nil {
			*m = make(map[string]*[]*Watcher)
		}
		list := (*m)[name]
		if list == nil {
			list = new([]*Watcher)
			(*m)[name] = list
		}
		return list
	}
	index := w.collection.indexNamed(w.opts.Index)
	switch prefix := w.opts.Prefix; {
	case index >= 0:
		for len(x.byIndex) <= index {
			x.byIndex = append(x.byIndex, nil)
		}
		w.list = bucket(&x.byIndex[index], w.opts.Value)
	case w.opts.Key != "":
		w.list = bucket(&x.byKey, w.opts.Key)
	case prefix == "":
		w.list = &x.all
	case strings.IndexByte(prefix, '/') == len(prefix)-1:
		w.list = bucket(&x.byNamespace, prefix)
	default:
		w.list = &x.others
	}
	w.index = len(*w.list)
	*w.list = append(*w.list, w)
}

func (x *watcherIndex) remove(w *Watcher) {
	if w.list == nil {
		return
	}
	list := *w.list
	last := len(list) - 1
	list[w.index] = list[last]
	list[w.index].index = w.index
	list[last] = nil
	*w.list = list[:last]
	if last == 0 {
		if index := w.collection.indexNamed(w.opts.Index); index >= 0 {
			delete(x.byIndex[index], w.opts.Value)
		} else if w.opts.Key != "" {
			delete(x.byKey, w.opts.Key)
		} else {
			delete(x.byNamespace, w.opts.Prefix)
		}
	}
	w.list = nil
}

// notify marks event number n as pending for all whom it concerns.
func (x *watcherIndex) notify(n uint64, key string, ev *Event) {
	for _, w := range x.all {
		w.mark(n, ev)
	}
	if list := x.byKey[key]; list != nil {
		for _, w := range *list {
			w.mark(n, ev)
		}
	}
	if len(x.byNamespace) > 0 {
		if i := strings.IndexByte(key, '/'); i >= 0 {
			if list := x.byNamespace[key[:i+1]]; list != nil {
				for _, w := range *list {
					w.mark(n, ev)
				}
			}
		}
	}
	for _, w := range x.others {
		if strings.HasPrefix(key, w.opts.Prefix) {
			w.mark(n, ev)
		}
	}
	x.notifyIndexed(n, key, ev)
}

// notifyIndexed is notify for those who watch by an index.
func (x *watcherIndex) notifyIndexed(n uint64, key string, ev *Event) {
	for i, watchers := range x.byIndex {
		if len(watchers) == 0 {
			continue
		}
		notify := func(e *Entry) string {
			value := e.collection.indexes()[i].Of(e)
			if list := watchers[value]; list != nil {
				for _, w := range *list {
					if w.concerns(key) {
						w.mark(n, ev)
					}
				}
			}
			return value
		}
		switch {
		case ev.Previous == nil:
			notify(ev.Current)
		case ev.Current == nil:
			notify(ev.Previous)
		default:
			of := ev.Current.collection.indexes()[i].Of
			if value := notify(ev.Current); of(ev.Previous) != value {
				notify(ev.Previous)
			}
		}
	}
}

func (w *Watcher) mark(n uint64, ev *Event) {
	if !w.pending && w.wants(ev) {
		w.pending = true
		w.first = n
		signal(w.wake)
	}
}

// wants tells whether the watcher is to look at an event.
func (w *Watcher) wants(ev *Event) bool {
	match := w.opts.Match
	if match == nil || !w.opts.Narrow || w.collection.cfg.Transformer != nil {
		return true // to decrypt may take long
	}
	return ev.Current != nil && match(ev.Current) || ev.Previous != nil && match(ev.Previous)
}

// fail ends all watches.
func (x *watcherIndex) fail(err error) {
	end := func(list []*Watcher) {
		for _, w := range list {
			w.err = err
			w.list = nil
			signal(w.wake)
		}
	}
	end(x.all)
	end(x.others)
	for _, list := range x.byKey {
		end(*list)
	}
	for _, list := range x.byNamespace {
		end(*list)
	}
	for _, watchers := range x.byIndex {
		for _, list := range watchers {
			end(*list)
		}
	}
	*x = watcherIndex{}
}

// TooOldError is an ErrTooOld that knows after which revision a watch can begin.
type TooOldError struct{ Since, Oldest int64 }

func (e *TooOldError) Error() string { return fmt.Sprintf("%v: %d (%d)", ErrTooOld, e.Since, e.Oldest) }

// Unwrap returns ErrTooOld.
func (e *TooOldError) Unwrap() error { return ErrTooOld }
