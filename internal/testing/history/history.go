// Package history checks what clients of an API server have observed against the log of its store:
// every write to some keys, in the order of their revisions, as etcd reports it.
//
// A request is linearizable if its response is correct at one instant between its call and its
// return. The log is the only possible order of the writes, so that the checker only has to find an
// instant for each request: porcupine does that with a model whose state is a position in the log.
// The package also compares watches, and reads from a cache, with the log.
package history

import (
	"errors"
	"fmt"
	"maps"
	"sort"
	"time"
)

// Verb is what a Request of a test client does with an object of the tested store, such as creating or deleting it.
type Verb string

// The verbs of requests. List returns the objects of all keys.
const (
	Get    Verb = "get"
	List   Verb = "list"
	Create Verb = "create"
	Update Verb = "update"
	Patch  Verb = "patch"
	Delete Verb = "delete"
)

// write reports whether a request with the verb changes an object.
func (v Verb) write() bool { return v != Get && v != List }

// Request is a request for the object Key or, if the verb is List, for all objects.
type Request struct {
	Verb Verb
	Key  string
	// Value is the new value of a create, update or patch. No other request has the same value, so a
	// value identifies a write.
	Value string
	// Revision is the revision that the object must have for an update or delete. Zero means any.
	Revision int64
}

// Result is the outcome of a request, as far as the client knows it from the response.
type Result string

// The results. All but OK and Unknown mean that a request changed nothing.
const (
	OK       Result = "ok"
	NotFound Result = "not found"
	Exists   Result = "exists"
	Conflict Result = "conflict"
	// Unknown means that there was no response, or one that does not report whether the request has
	// changed or will change the object.
	Unknown Result = "unknown"
)

// Object is a version of an object in the tested store: its value and the revision at which it was written.
type Object struct {
	Value    string
	Revision int64
}

// Response is the response of the tested store to a request.
type Response struct {
	Result Result
	// Object is the object that a get returned, or a create, update or patch wrote.
	Object Object
	// Objects and Revision are what a list returned.
	Objects  map[string]Object
	Revision int64
}

// Operation is a request of a test client and its response, with the times of both. A client sends its requests one
// after the other.
type Operation struct {
	Client       int
	Call, Return time.Duration
	Request      Request
	Response     Response
}

// Event is a write in the Log, the store's own record of its writes. The value of a deletion is empty.
type Event struct {
	Key, Value string
	Revision   int64
}

// Log contains all writes that the store has executed, ordered by revision. Check compares all observations of clients
// with it.
type Log []Event

// History is everything that was observed. All operations and reads must have returned before the
// log was read.
type History struct {
	Log        Log
	Operations []Operation
	Watches    []*Watch
	Caches     []*Cache
}

// Check returns an error for each observation that is not consistent with the log.
func (h *History) Check() error {
	if err := h.checkLog(); err != nil {
		return err // the other checks depend on the log
	}
	states := h.Log.states()
	errs := []error{h.checkOperations(states)}
	for i, w := range h.Watches {
		if err := w.check(states); err != nil {
			errs = append(errs, fmt.Errorf("watch %d of %q from %d: %w", i, w.Key, w.From, err))
		}
	}
	for i, c := range h.Caches {
		if err := c.check(states); err != nil {
			errs = append(errs, fmt.Errorf("cache %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// checkLog checks that the revisions of the log increase, and that every value in the log was requested for its key and
// was written once. It also checks that no two requests have the same value.
func (h *History) checkLog() error {
	requested := map[string]string{} // key by value
	for _, op := range h.Operations {
		if value := op.Request.Value; value != "" {
			if _, exists := requested[value]; exists {
				return fmt.Errorf("two requests have the value %q", value)
			}
			requested[value] = op.Request.Key
		}
	}
	written := map[string]int64{}
	last := int64(0)
	for _, ev := range h.Log {
		if ev.Revision <= last {
			return fmt.Errorf("log: revision %d follows %d", ev.Revision, last)
		}
		last = ev.Revision
		if ev.Value == "" {
			continue
		}
		if key, exists := requested[ev.Value]; !exists || key != ev.Key {
			return fmt.Errorf("log: %+v was never requested", ev)
		}
		if before, exists := written[ev.Value]; exists {
			return fmt.Errorf("log: %+v was already written at revision %d", ev, before)
		}
		written[ev.Value] = ev.Revision
	}
	return nil
}

// states contains the log and, for each position in it, the objects that exist there. Position i is after the first i
// events.
type states struct {
	log Log
	// objects[i] are the objects after the first i events.
	objects []map[string]Object
}

// states computes the objects that exist at each position of the log.
func (l Log) states() *states {
	s := &states{log: l, objects: []map[string]Object{{}}}
	for _, ev := range l {
		next := maps.Clone(s.objects[len(s.objects)-1])
		if ev.Value == "" {
			delete(next, ev.Key)
		} else {
			next[ev.Key] = Object{Value: ev.Value, Revision: ev.Revision}
		}
		s.objects = append(s.objects, next)
	}
	return s
}

// includes reports whether the state at position i of the log is the one at the revision: the event before the
// position is not later than the revision, and the event after it is later.
func (s *states) includes(i int, revision int64) bool {
	return (i == 0 || s.log[i-1].Revision <= revision) && (i == len(s.log) || revision < s.log[i].Revision)
}

// position returns the position of the state at the revision: the number of events up to it.
func (s *states) position(revision int64) int {
	return sort.Search(len(s.log), func(i int) bool { return s.log[i].Revision > revision })
}
