package store

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func memoEntry(s *Store) *Entry {
	return newEntry(newCollection(s, collectionConfig("x")), "a", 1, nil)
}

func TestMemo(t *testing.T) {
	s := &Store{memos: memoClock{limit: 1 << 20}}
	e := memoEntry(s)
	if _, err := e.Memo(1, func() ([]byte, error) { return nil, errors.New("odd") }); err == nil {
		t.Error("no error")
	}
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range 100 {
		slot := i % 2
		wg.Go(func() {
			data, err := e.Memo(slot, func() ([]byte, error) {
				made.Add(1)
				return []byte{byte(slot)}, nil
			})
			if err != nil || len(data) != 1 || data[0] != byte(slot) {
				t.Errorf("slot %d: %v %v", slot, data, err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 2 {
		t.Errorf("created %d times", made.Load())
	}
	e.dropDerived()
	if s.memos.used != 0 || s.memos.hand != nil {
		t.Errorf("%d bytes remain", s.memos.used)
	}
}

// TestDecodedObjectCache checks that the memory of decoded objects is limited, that an object in
// use is not decoded again, and that Peek keeps nothing.
func TestDecodedObjectCache(t *testing.T) {
	s := &Store{memos: memoClock{limit: 10 * (decodedSize(20) + memoOverhead)}}
	c := newCollection(s, collectionConfig("x"))
	stored := []byte(`{"data":{"v":"12345"}}`)[:22]
	entry := func() *Entry { return newEntry(c, "a", 1, stored) }
	held := func(e *Entry) bool { return e.held.Load() != nil }

	peeked := entry()
	if _, err := peeked.Peek(); err != nil || held(peeked) || peeked.weak.Load() != nil {
		t.Errorf("kept after Peek: %v", err)
	}
	shared := entry()
	one, err := shared.Shared()
	if err != nil || held(shared) {
		t.Fatal("kept by Shared", err)
	}
	entries := make([]*Entry, 30)
	for i := range entries {
		entries[i] = entry()
		obj, err := entries[i].Object()
		if err != nil {
			t.Fatal(err)
		}
		if held(entries[i]) {
			t.Error("kept on first use")
		}
		if again, err := entries[i].Object(); err != nil || again != obj {
			t.Error("decoded twice", err)
		}
	}
	n := 0
	for _, e := range entries {
		if held(e) {
			n++
		}
	}
	if n == 0 || n > 10 || s.memos.used > s.memos.limit {
		t.Errorf("%d objects are kept, %d bytes of %d", n, s.memos.used, s.memos.limit)
	}
	for range 2 {
		runtime.GC()
	}
	if again, err := shared.Object(); err != nil || again != one {
		t.Errorf("decoded again although it is in use: %v", err)
	}
	runtime.KeepAlive(one)
	if entries[0].existing(retainNone) != nil {
		t.Error("an unused object was not collected")
	}
	shared.dropDerived()
	if held(shared) || shared.weak.Load() != nil {
		t.Error("not forgotten")
	}
}

func TestMemoBound(t *testing.T) {
	s := &Store{memos: memoClock{limit: 10 * (100 + memoOverhead)}}
	entries := make([]*Entry, 50)
	made := 0
	get := func(i int) {
		t.Helper()
		if entries[i] == nil {
			entries[i] = memoEntry(s)
		}
		data, err := entries[i].Memo(0, func() ([]byte, error) {
			made++
			return fmt.Appendf(make([]byte, 0, 100), "%0100d", i), nil
		})
		if err != nil || string(data) != fmt.Sprintf("%0100d", i) {
			t.Errorf("%d: %q %v", i, data, err)
		}
		if s.memos.used > s.memos.limit {
			t.Errorf("%d bytes", s.memos.used)
		}
	}
	for i := range entries {
		get(0) // used in each iteration, so it is kept
		get(i)
	}
	if made != len(entries) {
		t.Errorf("made %d, want %d: one in use was dropped", made, len(entries))
	}
	for i := range entries {
		get(i)
	}
	large := memoEntry(s)
	for range 2 {
		if _, err := large.Memo(0, func() ([]byte, error) { made++; return make([]byte, 1000), nil }); err != nil {
			t.Error(err)
		}
	}
	if large.memo(0).get() != nil {
		t.Error("a value that is too large was kept")
	}
}

// TestRing checks that the ring respects its limits, and that dropping events moves its start.
func TestRing(t *testing.T) {
	s := &Store{memos: memoClock{limit: 1}}
	c := newCollection(s, collectionConfig("x"))
	for _, test := range []struct{ events, bytes, size, want int }{
		{100, 1 << 30, 10, 100},
		{1000, 1000 * (eventOverhead + 10), 10, 1000},
		{1000, 100 * (eventOverhead + 1000), 1000, 100},
		{1000, 10, 1000, ringMin},
		{10, 10, 1000, 10},
	} {
		r := ring{maxEvents: test.events, maxBytes: test.bytes, first: firstNumber, next: firstNumber, start: 5}
		for i := range 3000 {
			r.add(Event{Revision: int64(10 + i), Current: newEntry(c, "a", int64(10+i), make([]byte, test.size))})
			if i == 5 {
				if got := r.after(12) - r.first; got != min(3, r.next-r.first) && test.events > 10 {
					t.Errorf("%+v: after 12: %d", test, got)
				}
			}
		}
		if got := int(r.next - r.first); got != test.want {
			t.Errorf("%+v: %d events", test, got)
		}
		if want := int64(3009 - test.want); r.start != want || r.at(r.first).Revision != want+1 {
			t.Errorf("%+v: starts at %d, first event at %d", test, r.start, r.at(r.first).Revision)
		}
		if r.after(r.start) != r.first || r.after(3009) != r.next || r.after(3008) != r.next-1 {
			t.Errorf("%+v: after", test)
		}
		sum := 0
		for n := r.first; n < r.next; n++ {
			sum += eventSize(r.at(n))
		}
		if sum != r.bytes {
			t.Errorf("%+v: %d bytes, want %d", test, r.bytes, sum)
		}
	}
}

func TestRingPrepend(t *testing.T) {
	c := newCollection(&Store{}, collectionConfig("x"))
	ev := func(revision int) Event {
		return Event{Revision: int64(revision), Current: newEntry(c, "a", int64(revision), nil)}
	}
	for _, test := range []struct{ past, present, max, want int }{{5, 3, 100, 8}, {20, 3, 10, 10}, {5, 0, 100, 5}, {0, 3, 100, 3}, {0, 0, 9, 0}} {
		r := ring{maxEvents: test.max, maxBytes: 1 << 20, first: firstNumber, next: firstNumber, start: 100}
		for i := range test.present {
			r.add(ev(101 + i))
		}
		var past []Event
		for i := range test.past {
			past = append(past, ev(101-test.past+i))
		}
		r.prepend(past, 50)
		if got := int(r.next - r.first); got != test.want {
			t.Errorf("%+v: %d events", test, got)
		}
		for i := range test.want {
			if got, want := r.at(r.next-1-uint64(i)).Revision, int64(100+test.present-i); got != want {
				t.Errorf("%+v: event %d from the end at %d, want %d", test, i, got, want)
			}
		}
		start := int64(50)
		if test.past+test.present > test.max {
			start = r.at(r.first).Revision - 1
		}
		if r.start != start {
			t.Errorf("%+v: starts at %d, want %d", test, r.start, start)
		}
		r.add(ev(200))
		if r.at(r.next-1).Revision != 200 {
			t.Errorf("%+v: cannot go on", test)
		}
	}
}
