package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestCommitGetListWatch(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))

	a := mustCreate(t, c, "ns/a", "1")
	w, err := c.Watch(ctx, WatchOptions{Since: a.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got, err := c.Get(ctx, "ns/a", -1); err != nil || valueOf(got) != "1" || got.Revision() != a.Revision() {
		t.Fatalf("Get: %v %v", got, err)
	}
	b := mustCreate(t, c, "ns/b", "1")
	a2 := mustUpdate(t, a, "2")
	deleted := mustDelete(t, b)

	page := mustList(t, c, ListOptions{Revision: -1})
	if got := show(page.Entries); !slices.Equal(got, []string{"ns/a=2"}) || page.Revision != deleted {
		t.Errorf("List: %v at %d, want at %d", got, page.Revision, deleted)
	}
	var got []string
	for len(got) < 3 {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			got = append(got, showEvent(ev)[2:])
		}
	}
	if want := []string{"+ns/b 1", "ns/a 1->2", "-ns/b 1"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	w.RequestProgress()
	batch, err := w.Next(ctx)
	if err != nil || len(batch.Events) != 0 || batch.Revision < deleted {
		t.Errorf("progress: %v %v", batch, err)
	}

	// Lost races.
	var conflict *ConflictError
	_, _, err = s.Commit(ctx, c.Update(a, configMap("a", "3"), 0))
	if !errors.Is(err, ErrConflict) || !errors.As(err, &conflict) || valueOf(conflict.Current) != "2" {
		t.Errorf("update of an old version: %v", err)
	}
	_, _, err = s.Commit(ctx, c.Create("ns/a", configMap("a", "3"), 0))
	if !errors.Is(err, ErrExists) || !errors.As(err, &conflict) || conflict.Current.Revision() != a2.Revision() {
		t.Errorf("create of what exists: %v", err)
	}
	_, _, err = s.Commit(ctx, c.Delete(b))
	if !errors.Is(err, ErrNotFound) || !errors.As(err, &conflict) || conflict.Current != nil {
		t.Errorf("delete of what is gone: %v", err)
	}
	if _, err := c.Get(ctx, "ns/b", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("get of what is gone: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := w.Next(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v", err)
	}
}
