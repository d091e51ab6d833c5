package store

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
)

// errClosed is returned by Next after Close.
var errClosed = fmt.Errorf("watcher is closed: %w", ErrStopped)

// Watcher is one watch of a collection. It is a position in the collection's recorded history, from which Next
// continues; it has no buffer. All methods except for Next and Notify are safe for concurrent use.
type Watcher struct {
	collection *Collection
	opts       WatchOptions
	// wake receives a token when Next may have something to return.
	wake chan struct{}
	// progress is set when a progress notification is requested.
	progress atomic.Bool
	// found and events are buffers that Next reuses.
	found, events []Event

	// The lock of the collection guards the fields below.

	// pending is set if the events from number first on have not been checked. Otherwise no event
	// up to now matches the watcher.
	pending bool
	first   uint64
	// since is the revision up to which events are skipped.
	since int64
	// err is the error with which the watch has failed.
	err error
	// list is the watcherIndex bucket that contains the watcher, index its position there.
	list  *[]*Watcher
	index int
}

// maxBatch is the number of events after which a batch is complete, unless the next event has the
// same revision.
const maxBatch = 256

// Watch starts a watch after it has waited for the cache to be filled. It returns ErrTooOld if neither the
// collection's recorded history nor etcd contains the events after opts.Since anymore, and ErrStopped if the store
// stops or the collection is dropped. The caller must close the watcher. ctx only applies to the start.
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

// begin registers the watcher at its start revision. It returns false without an error if the recorded history does
// not reach back to that revision, and ErrStopped if the collection was dropped.
func (w *Watcher) begin() (bool, error) {
	c := w.collection
	position := c.store.position.get()
	c.mu.Lock()
	defer c.mu.Unlock()
	if closed(c.dropped) {
		return false, ErrStopped // existing watchers have already failed
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

// Next blocks until there are events, a progress notification was requested, or ctx is done, whose error it then
// returns. It returns ErrTooOld if the watcher was too slow, so that the recorded history does not contain its next
// event anymore, or if the store has lost events. It returns ErrStopped after Close, if the collection is dropped or
// if the store stops. After these errors, the watch is terminated. Calls must not be concurrent.
func (w *Watcher) Next(ctx context.Context) (Batch, error) {
	for {
		batch, err := w.take()
		if err != nil || len(batch.Events) > 0 {
			return batch, err
		}
		if w.progress.Swap(false) {
			if err := w.collection.waitForRevision(ctx, -1); err == nil {
				return w.take()
			} else if ctx.Err() != nil {
				return Batch{}, err
			}
			// Without etcd there is no progress to report.
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

// take returns the events since the last call that match, without blocking, or the error with which the watch has
// failed. Without events, the batch contains only the revision up to which there are none.
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
		clear(w.found) // a waiting watcher must not keep entries alive
		w.found = w.found[:0]
		more := false
		if w.pending {
			if w.first < c.ring.first {
				w.err = fmt.Errorf("watching %s: %w: the watcher is too slow", c.cfg.Resource, ErrTooOld)
				c.watchers.remove(w)
				c.mu.Unlock()
				c.terminatedWatchers.Add(1)
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

// collect copies the next events with a matching key or prefix to found, up to about maxBatch, and
// advances the watcher. It returns the revision up to which the watcher has seen all events (the
// parameter, if it has seen everything), and whether there are more events. The caller holds the
// collection's lock.
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

// key returns the key of the object that has changed.
func (ev *Event) key() string {
	if ev.Current != nil {
		return ev.Current.key
	}
	return ev.Previous.key
}

// concerns reports whether the watch includes the key, by WatchOptions.Key or Prefix.
func (w *Watcher) concerns(key string) bool {
	if w.opts.Key != "" {
		return key == w.opts.Key
	}
	return strings.HasPrefix(key, w.opts.Prefix)
}

// RequestProgress makes Next return soon, possibly without events, with a Revision that is at least etcd's revision
// at the time of this call. If etcd does not respond, Next only returns for events, and the request is dropped. It is
// safe for concurrent use.
func (w *Watcher) RequestProgress() {
	w.progress.Store(true)
	signal(w.wake)
}

// Notify sends nil to changed after each batch of changes or progress notification, and finally the error with which
// the watch failed, until ctx is done. It is for callers that read the objects again after a change and select on
// other channels too. It calls Next, so the caller must not. It blocks while changed is not received from.
func (w *Watcher) Notify(ctx context.Context, changed chan<- error) {
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

// Close terminates the watch; Next then returns ErrStopped. It is safe for concurrent use and can be called more than
// once.
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

// watcherIndex finds the watchers that may match an event by its key and index values, so that a
// change does not evaluate all watchers of a resource. Each watcher is in one bucket. The zero
// value is empty. The lock of the collection guards it.
type watcherIndex struct {
	all []*Watcher
	// byKey and byNamespace contain watchers with a Key, or with a Prefix that has a single,
	// trailing slash.
	byKey, byNamespace map[string]*[]*Watcher
	// byIndex contains watchers with an Index, by the position of the index and their Value.
	byIndex []map[string]*[]*Watcher
	// byPrefix contains watchers with other prefixes.
	byPrefix []*Watcher
}

// add puts the watcher into the bucket for its index value, key, namespace or prefix.
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
	index := w.collection.cfg.indexNamed(w.opts.Index)
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
		w.list = &x.byPrefix
	}
	w.index = len(*w.list)
	*w.list = append(*w.list, w)
}

// remove removes the watcher from its bucket. It does nothing if the watcher is not in one.
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
		if index := w.collection.cfg.indexNamed(w.opts.Index); index >= 0 {
			delete(x.byIndex[index], w.opts.Value)
		} else if w.opts.Key != "" {
			delete(x.byKey, w.opts.Key)
		} else {
			delete(x.byNamespace, w.opts.Prefix)
		}
	}
	w.list = nil
}

// notify marks event number n of the recorded history as pending for all watchers that may match it, and wakes
// them. key is the key of the event.
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
	for _, w := range x.byPrefix {
		if strings.HasPrefix(key, w.opts.Prefix) {
			w.mark(n, ev)
		}
	}
	x.notifyIndexed(n, key, ev)
}

// notifyIndexed does what notify does, for watchers that select objects by an index. It finds them by the index
// values of the object before and after the change.
func (x *watcherIndex) notifyIndexed(n uint64, key string, ev *Event) {
	for i, watchers := range x.byIndex {
		if len(watchers) == 0 {
			continue
		}
		notify := func(e *Entry) string {
			value := e.collection.cfg.indexes()[i].Of(e)
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
			of := ev.Current.collection.cfg.indexes()[i].Of
			if value := notify(ev.Current); of(ev.Previous) != value {
				notify(ev.Previous)
			}
		}
	}
}

// mark wakes the watcher for event number n, if it is not already waiting to process an earlier
// event and the event may match.
func (w *Watcher) mark(n uint64, ev *Event) {
	if !w.pending && w.wants(ev) {
		w.pending = true
		w.first = n
		signal(w.wake)
	}
}

// wants reports whether the watcher must be woken for an event. It evaluates Match only if
// WatchOptions.Narrow allows it and the values are not encrypted, because decryption may take long.
func (w *Watcher) wants(ev *Event) bool {
	match := w.opts.Match
	if match == nil || !w.opts.Narrow || w.collection.cfg.Transformer != nil {
		return true // decryption may take long
	}
	return ev.Current != nil && match(ev.Current) || ev.Previous != nil && match(ev.Previous)
}

// fail makes Next of all watchers of the collection return err, and removes the watchers. It is called when the
// collection is dropped or events were lost. The caller holds the collection's lock.
func (x *watcherIndex) fail(err error) {
	end := func(list []*Watcher) {
		for _, w := range list {
			w.err = err
			w.list = nil
			signal(w.wake)
		}
	}
	end(x.all)
	end(x.byPrefix)
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

// TooOldError is the error of Watch for a start revision that is not in the history anymore. Since
// is the requested revision, Oldest the oldest one at which a watch can start. It wraps ErrTooOld.
type TooOldError struct{ Since, Oldest int64 }

// Error returns a text with the requested and the oldest possible revision.
func (e *TooOldError) Error() string { return fmt.Sprintf("%v: %d (%d)", ErrTooOld, e.Since, e.Oldest) }

// Unwrap returns ErrTooOld, for errors.Is.
func (e *TooOldError) Unwrap() error { return ErrTooOld }
