package history

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// ok returns the response to a write or a get.
func ok(value string, revision int64) Response {
	return Response{Result: OK, Object: Object{Value: value, Revision: revision}}
}

func listed(revision int64, objects map[string]Object) Response {
	return Response{Result: OK, Revision: revision, Objects: objects}
}

// base returns a correct history of two keys. The operations follow each other, except for the last three: clients
// 2 and 3 got no response, and their calls overlap with everything after them.
func base() *History {
	h := &History{Log: Log{
		{"a", "a1", 10}, {"b", "b1", 12}, {"a", "a2", 15}, {"a", "", 17}, {"b", "b2", 18}, {"a", "a3", 20},
	}}
	at := time.Duration(0)
	add := func(in Request, out Response) {
		h.Operations = append(h.Operations, Operation{Client: 1, Call: at, Return: at + 5, Request: in, Response: out})
		at += 10
	}
	add(Request{Verb: Get, Key: "a"}, Response{Result: NotFound})
	add(Request{Verb: Create, Key: "a", Value: "a1"}, ok("a1", 10))
	add(Request{Verb: Create, Key: "a", Value: "x"}, Response{Result: Exists})
	add(Request{Verb: Create, Key: "b", Value: "b1"}, ok("b1", 12))
	add(Request{Verb: List}, listed(13, map[string]Object{"a": {"a1", 10}, "b": {"b1", 12}}))
	add(Request{Verb: Update, Key: "a", Value: "a2", Revision: 10}, ok("a2", 15))
	add(Request{Verb: Update, Key: "a", Value: "y", Revision: 10}, Response{Result: Conflict})
	add(Request{Verb: Get, Key: "a"}, ok("a2", 15))
	add(Request{Verb: Delete, Key: "a"}, Response{Result: OK})
	add(Request{Verb: List}, listed(17, map[string]Object{"b": {"b1", 12}}))
	add(Request{Verb: Patch, Key: "b", Value: "b2"}, ok("b2", 18))
	add(Request{Verb: Get, Key: "b"}, ok("b2", 18))
	add(Request{Verb: Get, Key: "a"}, ok("a3", 20))
	h.Operations = append(h.Operations,
		Operation{Client: 2, Call: 41, Return: 50, Request: Request{Verb: Create, Key: "a", Value: "a3"}, Response: Response{Result: Unknown}},
		Operation{Client: 2, Call: 51, Return: 60, Request: Request{Verb: Patch, Key: "a", Value: "never"}, Response: Response{Result: Unknown}},
		Operation{Client: 3, Call: 41, Return: 50, Request: Request{Verb: Delete, Key: "a"}, Response: Response{Result: Unknown}},
	)
	all := []WatchEvent{
		{Added, "b", "b1", 12}, {Modified, "a", "a2", 15}, {Bookmark, "", "", 16}, {Deleted, "a", "a2", 17}, {Modified, "b", "b2", 18}, {Added, "a", "a3", 20}, {Bookmark, "", "", 20},
	}
	h.Watches = []*Watch{
		{From: 11, Initial: map[string]Object{"a": {"a1", 10}}, Events: all, Until: 20},
		{Key: "b", From: 16, Initial: map[string]Object{"b": {"b1", 12}}, Events: []WatchEvent{{Modified, "b", "b2", 18}}, Until: 20},
	}
	h.Caches = []*Cache{{Reads: []CacheRead{
		{Revision: 5, Objects: map[string]Object{}},
		{AtLeast: 10, Revision: 12, Objects: map[string]Object{"a": {"a1", 10}, "b": {"b1", 12}}},
		{Revision: 12, Objects: map[string]Object{"a": {"a1", 10}, "b": {"b1", 12}}},
	}}}
	return h
}

// TestCheck checks that a correct history is accepted, and that the same history with an anomaly is
// rejected for that reason.
func TestCheck(t *testing.T) {
	// Positions in the operations of base.
	const (
		createB = iota + 3
		listBoth
		update
		conflict
		getUpdated
		deleteA
		listB
		patch
		getPatched
		getLast
		lostCreate
		lostPatch
		lostDelete
	)
	const illegal = "not linearizable"
	for _, c := range []struct {
		name   string
		change func(h *History)
		want   string
	}{
		{"correct", func(*History) {}, ""},
		{"stale read", func(h *History) { h.Operations[getUpdated].Response = ok("a1", 10) }, illegal},
		{"stale read after a lost response", func(h *History) { h.Operations[getLast].Response = Response{Result: NotFound} }, ""},
		{"read of another revision", func(h *History) { h.Operations[getUpdated].Response = ok("a2", 14) }, illegal},
		{"read of the future", func(h *History) {
			h.Operations[update-1].Response = listed(16, map[string]Object{"a": {"a2", 15}, "b": {"b1", 12}})
		}, illegal},
		{"deleted object is read", func(h *History) {
			h.Operations[listB].Response = listed(17, map[string]Object{"a": {"a2", 15}, "b": {"b1", 12}})
		}, illegal},
		{"list of two revisions", func(h *History) {
			h.Operations[listBoth].Response = listed(13, map[string]Object{"b": {"b1", 12}})
		}, illegal},
		{"list with a later revision", func(h *History) { h.Operations[listBoth].Response.Revision = 15 }, illegal},
		{"list with an earlier revision", func(h *History) { h.Operations[listBoth].Response.Revision = 11 }, illegal},
		{"lost create", func(h *History) { h.Log = slices.Delete(h.Log, 1, 2) }, illegal},
		{"lost update", func(h *History) { h.Log = slices.Delete(h.Log, 2, 3) }, illegal},
		{"lost deletion", func(h *History) { h.Log = slices.Delete(h.Log, 3, 4) }, illegal},
		{"lost create without a response", func(h *History) {
			h.Log = slices.Delete(h.Log, 5, 6)
			h.Operations = slices.Delete(h.Operations, getLast, getLast+1)
			h.Watches[0].Events = h.Watches[0].Events[:5]
		}, ""},
		{"deletion without a response", func(h *History) {
			h.Operations[deleteA].Response.Result = Unknown
			h.Operations = slices.Delete(h.Operations, lostDelete, lostDelete+1)
		}, ""},
		{"two deletions, one happened", func(h *History) {
			h.Operations[lostDelete].Response.Result = OK
			h.Operations[lostDelete].Return = 1000
		}, illegal},
		{"write without a request", func(h *History) { h.Log = append(h.Log, Event{"b", "b3", 21}) }, "never requested"},
		{"deletion without a request", func(h *History) { h.Log = append(h.Log, Event{"b", "", 21}) }, illegal},
		{"write that happens twice", func(h *History) { h.Log = append(h.Log, Event{"b", "b2", 21}) }, "already written"},
		{"write to another key", func(h *History) { h.Log[5].Key = "b" }, "never requested"},
		{"write before its request", func(h *History) { h.Operations[lostCreate].Call = 1000 }, illegal},
		{"order of the log", func(h *History) { h.Log[1].Revision = 16 }, "follows"},
		{"update of an outdated version succeeds", func(h *History) { h.Operations[update].Request.Revision = 9 }, illegal},
		{"conflict with the current version", func(h *History) { h.Operations[conflict].Request.Revision = 15 }, illegal},
		{"update of an outdated version succeeds without a response", func(h *History) {
			h.Operations[update].Request.Revision = 9
			h.Operations[update].Response = Response{Result: Unknown}
		}, illegal},
		{"deletion of an outdated version", func(h *History) { h.Operations[deleteA].Request.Revision = 10 }, illegal},
		{"create of an existing object", func(h *History) {
			h.Operations[update].Request.Verb, h.Operations[update].Request.Revision = Create, 0
		}, illegal},
		{"failed write happens", func(h *History) { h.Operations[patch].Response = Response{Result: NotFound} }, illegal},
		{"response with another revision", func(h *History) { h.Operations[patch].Response.Object.Revision = 19 }, illegal},
		{"response with another value", func(h *History) { h.Operations[createB].Response.Object.Value = "b2" }, illegal},
		{"value is not unique", func(h *History) { h.Operations[lostPatch].Request.Value = "a1" }, "two requests"},
		{"concurrent read sees the old version", func(h *History) {
			h.Operations[getPatched].Call, h.Operations[getPatched].Response = h.Operations[patch].Call, ok("b1", 12)
			h.Operations[getPatched].Client = 4
		}, ""},

		{"missing event", func(h *History) { w := h.Watches[0]; w.Events = slices.Delete(w.Events, 1, 2) }, "was sent before {Type:MODIFIED Key:a"},
		{"missing event without bookmarks", func(h *History) { w := h.Watches[0]; w.Events = slices.Delete(w.Events, 1, 3) }, "expected {Type:MODIFIED Key:a"},
		{"missing last event", func(h *History) { w := h.Watches[0]; w.Events = w.Events[:5] }, "was not sent"},
		{"missing only event", func(h *History) { w := h.Watches[1]; w.Events = nil }, "was not sent"},
		{"missing deletion", func(h *History) { w := h.Watches[0]; w.Events = slices.Delete(w.Events, 3, 4) }, "expected {Type:DELETED"},
		{"event is sent twice", func(h *History) { w := h.Watches[0]; w.Events = slices.Insert(w.Events, 1, w.Events[0]) }, "follows revision 12"},
		{"resumed too early", func(h *History) { w := h.Watches[0]; w.Events = slices.Insert(w.Events, 5, w.Events[3:5]...) }, "follows revision 18"},
		{"events in another order", func(h *History) { w := h.Watches[0]; w.Events[3], w.Events[4] = w.Events[4], w.Events[3] }, "expected {Type:DELETED"},
		{"event that never happened", func(h *History) {
			w := h.Watches[1]
			w.Events = append(w.Events, WatchEvent{Modified, "b", "b3", 20})
		}, "never happened"},
		{"event after the log was read", func(h *History) {
			w := h.Watches[1]
			w.Events = append(w.Events, WatchEvent{Modified, "b", "b3", 21})
		}, ""},
		{"event of another key", func(h *History) { h.Watches[1].Key = "a" }, "initial objects"},
		{"event of another type", func(h *History) { h.Watches[0].Events[5].Type = Modified }, "expected {Type:ADDED"},
		{"deletion without the last version", func(h *History) { h.Watches[0].Events[3].Value = "a1" }, "expected {Type:DELETED"},
		{"bookmark of the future", func(h *History) { h.Watches[0].Events[2].Revision = 17 }, "was sent before"},
		{"bookmark of the past", func(h *History) { h.Watches[0].Events[2].Revision = 14 }, "follows revision 15"},
		{"initial objects of another revision", func(h *History) { h.Watches[0].From = 9 }, "initial objects"},

		{"cache goes backwards", func(h *History) { r := h.Caches[0].Reads; r[0], r[1] = r[1], r[0] }, "after 12"},
		{"cache is too old", func(h *History) { h.Caches[0].Reads[1].AtLeast = 13 }, "requested at least 13"},
		{"cache with objects of another revision", func(h *History) { h.Caches[0].Reads[2].Revision = 15 }, "expected map[a:{Value:a2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := base()
			c.change(h)
			err := h.Check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestManyUnknown checks that requests without a response, which may happen at any time after their
// call, do not make the search long.
func TestManyUnknown(t *testing.T) {
	h := &History{}
	revision, objects := int64(0), map[string]Object{}
	for i := range 2000 {
		at := time.Duration(i * 10)
		key, value := string(rune('a'+i%5)), string(rune('a'+i%5))+time.Duration(i).String()
		_, exists := objects[key]
		in := Request{Verb: Create, Key: key, Value: value}
		if exists {
			in.Verb = Patch
			if i%3 == 0 {
				in.Verb, in.Value = Delete, ""
			}
		}
		out := Response{Result: Unknown}
		if i%7 != 0 {
			revision++
			h.Log = append(h.Log, Event{key, in.Value, revision})
			objects[key] = Object{in.Value, revision}
			if in.Verb == Delete {
				delete(objects, key)
			}
			if i%2 != 0 {
				out = Response{Result: OK}
				if in.Verb != Delete {
					out.Object = objects[key]
				}
			}
		}
		h.Operations = append(h.Operations,
			Operation{Client: 1, Call: at, Return: at + 3, Request: in, Response: out},
			Operation{Client: 2, Call: at + 4, Return: at + 9, Request: Request{Verb: List}, Response: listed(revision, maps.Clone(objects))})
	}
	if err := h.Check(); err != nil {
		t.Error(err)
	}
	h.Operations[3001].Response = h.Operations[2001].Response
	if err := h.Check(); err == nil || !strings.Contains(err.Error(), "not linearizable") {
		t.Errorf("with a stale list: %v", err)
	}
}
