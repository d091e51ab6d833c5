package store

import "testing"

// TestIndexedWatch checks that a watcher with an index is not woken for objects with other index
// values, and that it sees objects that start or stop to match.
func TestIndexedWatch(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	cfg := collectionConfig("configmaps")
	cfg.Indexes = []Index{{Name: "value", Of: valueOf}}
	c := s.Collection(cfg)
	a := mustCreate(t, c, "ns/a", "mine")
	w, err := c.Watch(ctx, WatchOptions{
		Since: a.Revision(), Index: "value", Value: "mine", Match: func(e *Entry) bool { return valueOf(e) == "mine" },
	})
	if err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, mustCreate(t, c, "ns/b", "other"), "another")
	mustList(t, c, ListOptions{Revision: -1}) // makes sure that the cache contains the writes
	c.mu.Lock()
	pending := w.pending
	c.mu.Unlock()
	if pending {
		t.Error("woken for an entry that does not match")
	}
	mustUpdate(t, mustUpdate(t, a, "lost"), "mine")
	for n := 0; n < 2; {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			if got, want := valueOf(ev.Current), []string{"lost", "mine"}[n]; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			n++
		}
	}
	w.Close()
	if n := len(c.watchers.byIndex[0]); n != 0 {
		t.Errorf("%d values are still watched", n)
	}
}
