package store

import "testing"

// TestNarrowWatch checks that a watcher with narrowed options gets the same events and is not woken
// for others.
func TestNarrowWatch(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))
	a := mustCreate(t, c, "ns/a", "mine")
	w, err := c.Watch(ctx, WatchOptions{Since: a.Revision(), Narrow: true, Match: func(e *Entry) bool { return valueOf(e) == "mine" }})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	other := mustCreate(t, c, "ns/b", "other")
	mustUpdate(t, other, "another")
	mustList(t, c, ListOptions{Revision: -1}) // makes sure that the cache contains the writes
	c.mu.Lock()
	pending := w.pending
	c.mu.Unlock()
	if pending {
		t.Error("woken for an entry that does not match")
	}
	left := mustUpdate(t, a, "lost")
	mustUpdate(t, left, "mine")
	for _, want := range []string{"lost", "mine"} {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			if got := valueOf(ev.Current); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			want = "mine"
		}
		if len(batch.Events) == 2 {
			break
		}
	}
}
