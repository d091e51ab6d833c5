package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fragileWatcher is an etcd watcher whose watches can be interrupted.
type fragileWatcher struct {
	clientv3.Watcher
	mu      sync.Mutex
	cancels []context.CancelFunc
	healed  chan struct{}
	cut     bool
}

func (f *fragileWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	f.cancels = append(f.cancels, cancel)
	healed := f.healed
	if !f.cut {
		healed = nil
	}
	f.mu.Unlock()
	if healed != nil {
		select {
		case <-healed:
		case <-ctx.Done():
		}
	}
	return f.watcher().Watch(ctx, key, opts...)
}

func (f *fragileWatcher) RequestProgress(ctx context.Context) error {
	return f.watcher().RequestProgress(ctx)
}

func (f *fragileWatcher) watcher() clientv3.Watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Watcher
}

// breakAll cancels all watches and prevents new ones until heal is called.
func (f *fragileWatcher) breakAll() (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
	f.healed = make(chan struct{})
	for _, cancel := range f.cancels {
		cancel()
	}
	f.cancels = nil
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cut = false
		close(f.healed)
	}
}

// newFragileStore is like newStore with a watch that can be interrupted.
func newFragileStore(t testing.TB) (*Store, *fragileWatcher) {
	client, stopEtcd := startEtcd(t, t.TempDir())
	fragile := &fragileWatcher{Watcher: client.Watcher}
	client.Watcher = fragile
	s, stop := startStore(t, Config{Client: client})
	t.Cleanup(func() {
		stop()
		stopEtcd()
	})
	return s, fragile
}

// TestWatchResumes checks that a broken etcd watch is resumed where it stopped, without any effect
// on clients.
func TestWatchResumes(t *testing.T) {
	ctx := testContext(t)
	s, fragile := newFragileStore(t)
	c := s.Collection(collectionConfig("configmaps"))
	a := mustCreate(t, c, "ns/a", "0")
	w, err := c.Watch(ctx, WatchOptions{Since: a.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var want []string
	for i := range 20 {
		heal := fragile.breakAll()
		before := a
		a = mustUpdate(t, a, fmt.Sprint(i+1))
		want = append(want, showEvent(Event{Revision: a.Revision(), Current: a, Previous: before}))
		heal()
	}
	var got []string
	for len(got) < len(want) {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			got = append(got, showEvent(ev))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWatchCompacted checks that after a compaction during a broken watch everything is read again:
// watches fail, lists continue.
func TestWatchCompacted(t *testing.T) {
	ctx := testContext(t)
	s, fragile := newFragileStore(t)
	c := s.Collection(collectionConfig("configmaps"))
	other := s.Collection(collectionConfig("secrets"))
	a := mustCreate(t, c, "ns/a", "1")
	b := mustCreate(t, c, "ns/b", "1")
	keep := mustCreate(t, c, "ns/keep", "1")
	w, err := c.Watch(ctx, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	before := mustList(t, c, ListOptions{Revision: -1})

	heal := fragile.breakAll()
	mustUpdate(t, a, "2")
	mustDelete(t, b)
	last := mustCreate(t, c, "ns/c", "1")
	mustCreate(t, other, "ns/s", "1")
	if _, err := s.client.Compact(ctx, last.Revision()); err != nil {
		t.Fatal(err)
	}
	heal()

	if batch, err := w.Next(ctx); !errors.Is(err, ErrTooOld) {
		t.Errorf("Next: %v %v", batch, err)
	}
	page := mustList(t, c, ListOptions{Revision: -1})
	if got, want := show(page.Entries), []string{"ns/a=2", "ns/c=1", "ns/keep=1"}; !slices.Equal(got, want) {
		t.Errorf("list: %q, want %q", got, want)
	}
	if e := page.Entries[2]; e != before.Entries[2] || e.Revision() != keep.Revision() {
		t.Error("an unchanged entry was created again")
	}
	if _, err := c.Watch(ctx, WatchOptions{Since: before.Revision}); !errors.Is(err, ErrTooOld) {
		t.Errorf("Watch from before: %v", err)
	}
	if _, err := c.List(ctx, ListOptions{Revision: before.Revision, Exact: true}); !errors.Is(err, ErrTooOld) {
		t.Errorf("List of before: %v", err)
	}
	again, err := c.Watch(ctx, WatchOptions{Since: page.Revision})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	d := mustCreate(t, c, "ns/d", "1")
	if batch, err := again.Next(ctx); err != nil || len(batch.Events) != 1 || batch.Events[0].Current.Revision() != d.Revision() {
		t.Errorf("Next: %v %v", batch, err)
	}
	if got := mustList(t, other, ListOptions{Revision: -1}); len(got.Entries) != 1 {
		t.Errorf("a collection that was not read before: %q", show(got.Entries))
	}
}

// TestReplay checks that watches resume across a restart of the store, as far back as etcd's
// history reaches.
func TestReplay(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		testReplay(t, false, "+ns/a 1", "ns/a 1->2", "+ns/b 1", "-ns/b 1", "ns/a 2->3", "+ms/x 1", "ms/x 1->2")
	})
	t.Run("compacted", func(t *testing.T) {
		testReplay(t, true, "+ns/b 1", "-ns/b 1", "ns/a 2->3", "+ms/x 1", "ms/x 1->2")
	})
}

func testReplay(t *testing.T, compact bool, want ...string) {
	ctx := testContext(t)
	client, stopEtcd := startEtcd(t, t.TempDir())
	defer stopEtcd()
	s, stop := startStore(t, Config{Client: client})
	c := s.Collection(collectionConfig("configmaps"))
	first := mustCreate(t, c, "ns/a", "1")
	a := mustUpdate(t, first, "2")
	b := mustCreate(t, c, "ns/b", "1")
	mustDelete(t, b)
	mustUpdate(t, a, "3")
	mustUpdate(t, mustCreate(t, c, "ms/x", "1"), "2")
	stop()
	since := first.Revision() - 1
	if compact {
		since = a.Revision()
		if _, err := client.Compact(ctx, since); err != nil {
			t.Fatal(err)
		}
	}

	s, stop = startStore(t, Config{Client: client})
	defer stop()
	c = s.Collection(collectionConfig("configmaps"))
	if page := mustList(t, c, ListOptions{}); len(page.Entries) != 2 {
		t.Fatal(show(page.Entries))
	}
	w, err := c.Watch(ctx, WatchOptions{Since: since})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	batch, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ev := range batch.Events {
		got = append(got, showEvent(ev)[len(fmt.Sprint(ev.Revision))+1:])
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := batch.Events[len(batch.Events)-1].Current; e != c.Cached("ms/x") {
		t.Error("the current entry was created twice")
	}
	if compact {
		if _, err := c.Watch(ctx, WatchOptions{Since: since - 1}); !errors.Is(err, ErrTooOld) {
			t.Errorf("watch from before the compaction: %v", err)
		}
	}
	// The watch continues from there, and exact lists are possible for the same revisions.
	mustUpdate(t, c.Cached("ms/x"), "3")
	batch, err = w.Next(ctx)
	if err != nil || len(batch.Events) != 1 || valueOf(batch.Events[0].Current) != "3" {
		t.Errorf("Next: %v %v", batch, err)
	}
	page := mustList(t, c, ListOptions{Revision: b.Revision(), Exact: true})
	if got, want := show(page.Entries), []string{"ns/a=2", "ns/b=1"}; !slices.Equal(got, want) {
		t.Errorf("list at %d: %q, want %q", b.Revision(), got, want)
	}
}

// TestRestoredFromBackup restores etcd from a backup while the store runs, so that it has other
// keys at lower revisions, and checks that everything is read again.
func TestRestoredFromBackup(t *testing.T) {
	ctx := testContext(t)
	oldEtcd, stopOld := startEtcd(t, t.TempDir())
	client, stopEtcd := startEtcd(t, t.TempDir())
	// The client of the store connects to the old etcd first, then to the restored one.
	moving := &movingKV{}
	moving.to.Store(&oldEtcd.KV)
	shared := clientv3.NewCtxClient(ctx)
	fragile := &fragileWatcher{Watcher: oldEtcd.Watcher}
	shared.KV, shared.Watcher = moving, fragile
	s, stop := startStore(t, Config{Client: shared})
	defer stopEtcd()
	defer stopOld()
	defer stop()
	c := s.Collection(collectionConfig("configmaps"))
	// The restored etcd has a key with the same revision and a different value.
	a := mustCreate(t, c, "ns/a", "1")
	z := mustCreate(t, c, "ns/z", "1")
	for range 5 {
		z = mustUpdate(t, z, z.key+fmt.Sprint(z.revision))
	}
	page := mustList(t, c, ListOptions{Revision: -1})
	old, _ := c.snapshot()
	w, err := c.Watch(ctx, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	resp, err := client.Put(ctx, c.prefix+"ns/a", `{"data":{"v":"restored"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Revision != a.revision {
		t.Fatalf("restored at %d, want %d", resp.Header.Revision, a.revision)
	}
	heal := fragile.breakAll()
	fragile.mu.Lock()
	fragile.Watcher = client.Watcher
	fragile.mu.Unlock()
	moving.to.Store(&client.KV)
	heal()
	// Until the rollback is detected, reads fail or return the old state.
	for {
		after, err := c.List(ctx, ListOptions{Revision: -1})
		if errors.Is(err, ErrUnavailable) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := show(after.Entries); !slices.Equal(got, []string{"ns/a=restored"}) || after.Revision != resp.Header.Revision || after.Revision >= page.Revision {
			t.Errorf("list: %q at %d", got, after.Revision)
		}
		break
	}
	if _, err := w.Next(ctx); !errors.Is(err, ErrTooOld) {
		t.Errorf("Next: %v", err)
	}
	// A snapshot that was kept for a next page is not used anymore.
	c.mu.Lock()
	c.past.keep(old, &c.ring, c.revision)
	c.mu.Unlock()
	mustCreate(t, c, "ns/c", "1")
	if got := show(mustList(t, c, ListOptions{Revision: -1}).Entries); !slices.Equal(got, []string{"ns/a=restored", "ns/c=1"}) {
		t.Errorf("list: %q", got)
	}
}

// movingKV is a clientv3.KV that can be redirected to another client.
type movingKV struct {
	clientv3.KV
	to atomic.Pointer[clientv3.KV]
}

func (m *movingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return (*m.to.Load()).Get(ctx, key, opts...)
}

func (m *movingKV) Txn(ctx context.Context) clientv3.Txn { return (*m.to.Load()).Txn(ctx) }
