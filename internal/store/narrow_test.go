package store

import (
	"testing"
)

// TestNarrow holds that a watcher that narrows what it wants is told the same,
// and is not woken for the rest.
func TestNarrow(t *testing.T) {
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
	mustList(t, c, ListOptions{Revision: -1}) // the cache has them now
	c.mu.Lock()
	pending := w.pending
	c.mu.Unlock()
	if pending {
		t.Error("woken for what it does not want")
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
