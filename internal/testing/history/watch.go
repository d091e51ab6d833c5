package history

import (
	"fmt"
	"maps"
)

// EventType is the type of a WatchEvent, as in Kubernetes.
type EventType string

// The types of events that a watch sends.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	// Bookmark means that all events up to its revision have been sent.
	Bookmark EventType = "BOOKMARK"
)

// WatchEvent is an event that a watch has sent. A deletion has the last value of the object and the
// revision of the deletion.
type WatchEvent struct {
	Type       EventType
	Key, Value string
	Revision   int64
}

// Watch contains the events of a client that lists and watches. When a watch ends, the client
// continues with another one at the revision of the last event.
type Watch struct {
	// Key restricts the watch to one object. Empty means all.
	Key string
	// From is the revision of the list, or of the initial events, and Initial are its objects.
	From    int64
	Initial map[string]Object
	Events  []WatchEvent
	// Until is the revision up to which the client has waited for events. Zero means that of its last
	// event.
	Until int64
}

// check compares the watch with the log: the initial objects must be those at From, and each event between From and
// Until, or the last event if that is later, must have been sent once and in order. Events after the end of the log are
// not checked.
func (w *Watch) check(s *states) error {
	initial := maps.Clone(s.objects[s.position(w.From)])
	maps.DeleteFunc(initial, func(key string, _ Object) bool { return !w.covers(key) })
	if !maps.Equal(initial, w.Initial) {
		return fmt.Errorf("the initial objects are %+v, expected %+v", w.Initial, initial)
	}
	want := w.expected(s)
	last := w.From
	for i, ev := range w.Events {
		if len(s.log) > 0 && ev.Revision > s.log[len(s.log)-1].Revision {
			// The log was read before this event.
			break
		}
		switch {
		case ev.Revision < last || ev.Revision == last && ev.Type != Bookmark:
			return fmt.Errorf("event %d, %+v, follows revision %d", i, ev, last)
		case ev.Type == Bookmark && len(want) > 0 && want[0].Revision <= ev.Revision:
			return fmt.Errorf("event %d, %+v, was sent before %+v", i, ev, want[0])
		case ev.Type == Bookmark:
		case len(want) == 0:
			return fmt.Errorf("event %d, %+v, never happened", i, ev)
		case ev != want[0]:
			return fmt.Errorf("event %d is %+v, expected %+v", i, ev, want[0])
		default:
			want = want[1:]
		}
		last = ev.Revision
	}
	if until := max(w.Until, last); len(want) > 0 && want[0].Revision <= until {
		return fmt.Errorf("%+v was not sent until revision %d", want[0], until)
	}
	return nil
}

// covers reports whether the watch shows changes of the object with the key.
func (w *Watch) covers(key string) bool { return w.Key == "" || w.Key == key }

// expected returns the events that the watch must send: those after From, for the keys that it
// covers.
func (w *Watch) expected(s *states) []WatchEvent {
	var out []WatchEvent
	for i, ev := range s.log {
		if ev.Revision <= w.From || !w.covers(ev.Key) {
			continue
		}
		before, existed := s.objects[i][ev.Key]
		want := WatchEvent{Type: Added, Key: ev.Key, Value: ev.Value, Revision: ev.Revision}
		switch {
		case ev.Value == "":
			want.Type, want.Value = Deleted, before.Value
		case existed:
			want.Type = Modified
		}
		out = append(out, want)
	}
	return out
}

// Cache contains successive lists of one client from the cache of one server.
type Cache struct{ Reads []CacheRead }

// CacheRead is the response to a list that the server may serve from its cache. Revision is the
// revision of the list, and AtLeast the minimum revision that the client has requested.
type CacheRead struct {
	AtLeast, Revision int64
	Objects           map[string]Object
}

// check checks that each list in c shows the objects as they were at the revision of the list, and that the revisions
// of successive lists never decrease.
func (c *Cache) check(s *states) error {
	last := int64(0)
	for i, read := range c.Reads {
		if read.Revision < last || read.Revision < read.AtLeast {
			return fmt.Errorf("list %d has revision %d, after %d, requested at least %d", i, read.Revision, last, read.AtLeast)
		}
		last = read.Revision
		if want := s.objects[s.position(read.Revision)]; !maps.Equal(read.Objects, want) {
			return fmt.Errorf("list %d of revision %d contains %+v, expected %+v", i, read.Revision, read.Objects, want)
		}
	}
	return nil
}
