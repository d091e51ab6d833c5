package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

	// Conflicting writes.
	var conflict *ConflictError
	_, _, err = s.Commit(ctx, c.Update(a, configMap("a", "3"), 0))
	if !errors.Is(err, ErrConflict) || !errors.As(err, &conflict) || valueOf(conflict.Current) != "2" {
		t.Errorf("update of an old version: %v", err)
	}
	_, _, err = s.Commit(ctx, c.Create("ns/a", configMap("a", "3"), 0))
	if !errors.Is(err, ErrExists) || !errors.As(err, &conflict) || conflict.Current.Revision() != a2.Revision() {
		t.Errorf("create of an existing key: %v", err)
	}
	_, _, err = s.Commit(ctx, c.Delete(b))
	if !errors.Is(err, ErrNotFound) || !errors.As(err, &conflict) || conflict.Current != nil {
		t.Errorf("delete of a deleted key: %v", err)
	}
	if _, err := c.Get(ctx, "ns/b", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("get of a deleted key: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := w.Next(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v", err)
	}
}

// TestSlowWatcher checks that the watch of a slow watcher fails, and that a watcher without
// matching events is not considered slow.
func TestSlowWatcher(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{History: 64})
	c := s.Collection(collectionConfig("configmaps"))
	a := mustCreate(t, c, "ns/a", "0")
	watch := func(opts WatchOptions) *Watcher {
		w, err := c.Watch(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
	slow := watch(WatchOptions{})
	idle := watch(WatchOptions{Prefix: "other/"})
	idleKey := watch(WatchOptions{Key: "other/x", Since: a.Revision()})
	idlePrefix := watch(WatchOptions{Prefix: "oth"})
	for range 200 {
		a = mustUpdate(t, a, a.Key()+strconv.FormatInt(a.Revision(), 10))
	}
	x := mustCreate(t, c, "other/x", "1")
	for _, w := range []*Watcher{idle, idleKey, idlePrefix} {
		batch, err := w.Next(ctx)
		if err != nil || len(batch.Events) != 1 || batch.Events[0].Current.Revision() != x.Revision() || batch.Revision < x.Revision() {
			t.Errorf("%+v: %v %v", w.opts, batch, err)
		}
	}
	if _, err := slow.Next(ctx); !errors.Is(err, ErrTooOld) {
		t.Errorf("slow: %v", err)
	}
	if _, err := slow.Next(ctx); !errors.Is(err, ErrTooOld) {
		t.Errorf("slow, again: %v", err)
	}
	if _, err := c.Watch(ctx, WatchOptions{Since: x.Revision() - 150}); !errors.Is(err, ErrTooOld) {
		t.Errorf("watch from before the ring: %v", err)
	}
	slow.Close()
	slow.Close()
	idle.Close()
	idleKey.Close()
	idlePrefix.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := &c.watchers; len(x.all)+len(x.byKey)+len(x.byNamespace)+len(x.byPrefix) != 0 {
		t.Errorf("closed watchers are still registered: %+v", x)
	}
}

// TestWatchersNotWoken checks that only watchers that match the key are woken.
func TestWatchersNotWoken(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))
	var watchers []*Watcher
	for i := range 100 {
		for _, opts := range []WatchOptions{{Prefix: fmt.Sprintf("ns%d/", i)}, {Key: fmt.Sprintf("ns%d/a", i)}} {
			w, err := c.Watch(ctx, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			watchers = append(watchers, w)
		}
	}
	mustCreate(t, c, "ns7/a", "1")
	mustCreate(t, c, "ns8/b", "1")
	mustList(t, c, ListOptions{Revision: -1})
	var woken []string
	for _, w := range watchers {
		if len(w.wake) > 0 {
			woken = append(woken, w.opts.Prefix+w.opts.Key)
		}
	}
	if want := []string{"ns7/", "ns7/a", "ns8/"}; !slices.Equal(woken, want) {
		t.Errorf("woken: %q, want %q", woken, want)
	}
}

func TestRevisions(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))
	a := mustCreate(t, c, "ns/a", "1")
	// A key outside of the collections increments the revision without an event.
	foreign, err := s.client.Put(ctx, "compact_rev_key", "x")
	if err != nil {
		t.Fatal(err)
	}
	if page := mustList(t, c, ListOptions{Revision: foreign.Header.Revision}); page.Revision < foreign.Header.Revision {
		t.Errorf("list at %d, want %d", page.Revision, foreign.Header.Revision)
	}
	foreign, err = s.client.Put(ctx, "compact_rev_key", "y")
	if err != nil {
		t.Fatal(err)
	}
	page := mustList(t, c, ListOptions{Revision: foreign.Header.Revision, Exact: true})
	if page.Revision != foreign.Header.Revision || len(page.Entries) != 1 {
		t.Errorf("list at %d, want %d", page.Revision, foreign.Header.Revision)
	}
	if revision, err := s.CurrentRevision(ctx); err != nil || revision != foreign.Header.Revision {
		t.Errorf("current: %d %v", revision, err)
	}
	if err := s.Healthy(ctx); err != nil {
		t.Error(err)
	}
	_, err = c.List(ctx, ListOptions{Revision: foreign.Header.Revision + 1000})
	if !errors.Is(err, ErrTooNew) {
		t.Errorf("list of the future: %v", err)
	}
	if e, err := c.Get(ctx, "ns/a", a.Revision()); err != nil || e.Revision() != a.Revision() {
		t.Errorf("get: %v %v", e, err)
	}
	// Concurrent callers share the requests to etcd.
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Get(ctx, "ns/a", -1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestTransactionOverCollections(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	a, b := s.Collection(collectionConfig("services/specs")), s.Collection(collectionConfig("ipaddresses"))
	w, err := b.Watch(ctx, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	entries, revision := mustCommit(t, s, a.Create("ns/a", configMap("a", "1"), 0), b.Create("10.0.0.1", configMap("b", "1"), 0))
	if entries[0].Revision() != revision || entries[1].Revision() != revision {
		t.Errorf("revisions %d %d, want %d", entries[0].Revision(), entries[1].Revision(), revision)
	}
	if batch, err := w.Next(ctx); err != nil || len(batch.Events) != 1 || batch.Events[0].Current != entries[1] {
		t.Errorf("the watch does not have the writer's entry: %v %v", batch, err)
	}
	// The address exists, so the transaction has no effect.
	_, _, err = s.Commit(ctx, a.Create("ns/b", configMap("b", "1"), 0), b.Create("10.0.0.1", configMap("b", "1"), 0))
	var conflict *ConflictError
	if !errors.As(err, &conflict) || conflict.Resource.Resource != "ipaddresses" || !errors.Is(err, ErrExists) {
		t.Errorf("conflict: %v", err)
	}
	if _, err := a.Get(ctx, "ns/b", -1); !errors.Is(err, ErrNotFound) {
		t.Errorf("partial transaction: %v", err)
	}
	for name, ops := range map[string][]Op{
		"none":          nil,
		"one key twice": {a.Create("ns/x", configMap("x", ""), 0), a.Create("ns/x", configMap("x", ""), 0)},
		"no key":        {a.Create("", configMap("x", ""), 0)},
		"no object":     {a.Create("ns/x", nil, 0)},
		"undecodable":   {a.Create("ns/x", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}, 0)},
		"not an op":     {{}},
		"of elsewhere":  {newCollection(&Store{}, collectionConfig("x")).Create("x", configMap("x", ""), 0)},
	} {
		if _, _, err := s.Commit(ctx, ops...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := s.Commit(ctx, a.Create("ns/big", configMap("big", strings.Repeat("x", 2<<20)), 0)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := s.Commit(canceled, a.Create("ns/c", configMap("c", ""), 0)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestUpdateWithoutChange(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))
	a := mustCreate(t, c, "ns/a", "1")
	entries, revision := mustCommit(t, s, c.Update(a, configMap("ns/a", "1"), 0))
	if entries[0] != a || revision != a.Revision() {
		t.Errorf("got %v at %d", entries[0], revision)
	}
	b := mustUpdate(t, a, "2")
	if _, _, err := s.Commit(ctx, c.Update(a, configMap("ns/a", "1"), 0)); !errors.Is(err, ErrConflict) {
		t.Errorf("an old entry was accepted as current: %v", err)
	}
	_ = b
}

// TestOnLeaseFull checks that OnLeaseFull is called with the number of keys of a lease.
func TestOnLeaseFull(t *testing.T) {
	ctx := testContext(t)
	var reported []int
	s := newStore(t, Config{OnLeaseFull: func(keys int) { reported = append(reported, keys) }})
	for range leaseKeys + 1 {
		if _, err := s.leases.get(ctx, 3600); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(reported, []int{leaseKeys}) {
		t.Errorf("leases were used for %v keys", reported)
	}
}

func TestTTL(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("events"))
	var ops []*Entry
	for i := range 5 {
		entries, _ := mustCommit(t, s, c.Create(fmt.Sprint("ns/", i), configMap("x", "1"), 3600))
		ops = append(ops, entries[0])
	}
	resp, err := s.client.Leases(ctx)
	if err != nil || len(resp.Leases) != 1 {
		t.Fatalf("leases: %v %v", resp, err)
	}
	ttl, err := s.client.TimeToLive(ctx, resp.Leases[0].ID)
	if err != nil || ttl.GrantedTTL < 3600 || ttl.GrantedTTL > 3700 {
		t.Errorf("time to live: %v %v", ttl, err)
	}
	// An update without changes writes nothing and does not renew the ttl.
	if same, _ := mustCommit(t, s, c.Update(ops[0], configMap("x", "1"), 3600)); same[0].Revision() != ops[0].Revision() {
		t.Errorf("an update without changes created revision %d of %d", same[0].Revision(), ops[0].Revision())
	}
	w, err := c.Watch(ctx, WatchOptions{Since: ops[4].Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Revoking the lease deletes all its keys in one revision.
	if _, err := s.client.Revoke(ctx, resp.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	batch, err := w.Next(ctx)
	if err != nil || len(batch.Events) != 5 || batch.Events[0].Revision != batch.Events[4].Revision {
		t.Errorf("deletions: %v %v", batch, err)
	}
	// The store still uses the revoked lease and must create a new one.
	mustCommit(t, s, c.Create("ns/again", configMap("x", "1"), 3600))
}

func TestCompactor(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	c := s.Collection(collectionConfig("configmaps"))
	var reported []int64
	one, two := &Compactor{Client: s.client, Compacted: s.SetCompacted}, &Compactor{Client: s.client, Compacted: func(r int64) { reported = append(reported, r) }}
	a := mustCreate(t, c, "ns/a", "1")
	first := a.Revision()
	round1, revision1, err := one.compact(ctx, 0, 0)
	if err != nil || round1 != 1 {
		t.Fatal(round1, revision1, err)
	}
	// The second compactor starts later and learns the current round.
	round2, revision2, err := two.compact(ctx, 0, 0)
	if err != nil || round2 != 1 || revision2 != revision1 {
		t.Fatal(round2, revision2, err)
	}
	mustUpdate(t, a, "2")
	if round1, _, err = one.compact(ctx, round1, revision1); err != nil || round1 != 2 {
		t.Fatal(round1, err)
	}
	if round2, _, err = two.compact(ctx, round2, revision2); err != nil || round2 != 2 {
		t.Fatal(round2, err)
	}
	if len(reported) != 1 || reported[0] != revision1 {
		t.Errorf("Compacted called with %v, want %d", reported, revision1)
	}
	// Revisions that are compacted in etcd are too old, even if the cache still has them.
	if _, err := c.List(ctx, ListOptions{Revision: first, Exact: true}); !errors.Is(err, ErrTooOld) {
		t.Errorf("a list at %d: %v", first, err)
	}
	if _, err := c.List(ctx, ListOptions{Revision: first}); err != nil {
		t.Error(err)
	}
	_, err = s.client.Get(ctx, "x", clientv3.WithRev(revision1-1))
	if !errors.Is(etcdError(err), ErrTooOld) {
		t.Errorf("revisions before %d still exist: %v", revision1, err)
	}
	if _, err := s.client.Get(ctx, "x", clientv3.WithRev(revision1)); err != nil {
		t.Error(err)
	}
	running, cancel := context.WithCancel(ctx)
	cancel()
	if err := one.Run(running); err != nil {
		t.Error(err)
	}
}

func TestDropAndStop(t *testing.T) {
	ctx := testContext(t)
	client, stopEtcd := startEtcd(t, t.TempDir())
	defer stopEtcd()
	s, stop := startStore(t, Config{Client: client})
	c, kept := s.Collection(collectionConfig("example.com/foos")), s.Collection(collectionConfig("configmaps"))
	if s.Collection(collectionConfig("configmaps")) != kept {
		t.Error("a second collection of one path")
	}
	mustCreate(t, c, "ns/a", "1")
	w, err := c.Watch(ctx, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w2, err := kept.Watch(ctx, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Drop(c)
	s.Drop(c)
	if _, err := w.Next(ctx); !errors.Is(err, ErrStopped) {
		t.Errorf("watch of a dropped collection: %v", err)
	}
	if _, err := c.List(ctx, ListOptions{}); !errors.Is(err, ErrStopped) {
		t.Errorf("list of a dropped collection: %v", err)
	}
	// A watcher that started while the collection was being dropped gets the error as well.
	late := &Watcher{collection: c, wake: make(chan struct{}, 1)}
	if begun, err := late.begin(); begun || !errors.Is(err, ErrStopped) {
		t.Errorf("starting a watch of a dropped collection: %v, %v", begun, err)
	}
	if err := c.waitForRevision(ctx, -1); !errors.Is(err, ErrStopped) {
		t.Errorf("reading a dropped collection: %v", err)
	}
	again := s.Collection(collectionConfig("example.com/foos"))
	if page := mustList(t, again, ListOptions{}); again == c || len(page.Entries) != 1 {
		t.Errorf("added again: %q", show(page.Entries))
	}
	stop()
	if _, err := w2.Next(ctx); !errors.Is(err, ErrStopped) {
		t.Errorf("watch of a stopped store: %v", err)
	}
	if _, err := s.Collection(collectionConfig("new")).List(ctx, ListOptions{}); !errors.Is(err, ErrStopped) {
		t.Errorf("list of a stopped store: %v", err)
	}
	if err := s.Run(ctx); err == nil {
		t.Error("ran twice")
	}
}

func TestRoute(t *testing.T) {
	s, err := New(Config{Client: &clientv3.Client{}, Prefix: "registry/x/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"pods", "/services/specs/", "services/endpoints", "example.com/foos", "ranges"} {
		s.Collection(collectionConfig(path))
	}
	for key, want := range map[string]string{
		"/registry/x/pods/ns/a":             "pods",
		"/registry/x/pods/a":                "pods",
		"/registry/x/pods/ns/a/b/c":         "pods",
		"/registry/x/services/specs/ns/a":   "services/specs",
		"/registry/x/services/endpoints/n/": "services/endpoints",
		"/registry/x/example.com/foos/a":    "example.com/foos",
		"/registry/x/ranges/serviceips":     "ranges",
		"/registry/x/example.com/bars/a":    "",
		"/registry/x/services/a":            "",
		"/registry/x/pods":                  "",
		"/registry/x/pods/":                 "",
		"/registry/x/":                      "",
		"/registry/pods/a":                  "",
		"compact_rev_key":                   "",
		"":                                  "",
	} {
		got := ""
		if c := s.route([]byte(key)); c != nil {
			got = c.cfg.Path
		}
		if got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct{ err, want error }{
		{rpctypes.ErrNoSpace, ErrNoSpace},
		{rpctypes.ErrGRPCNoSpace, ErrNoSpace},
		{rpctypes.ErrRequestTooLarge, ErrTooLarge},
		{rpctypes.ErrCompacted, ErrTooOld},
		{rpctypes.ErrFutureRev, ErrTooNew},
		{rpctypes.ErrTimeout, ErrUnavailable},
		{rpctypes.ErrNoLeader, ErrUnavailable},
		{rpctypes.ErrTimeoutDueToLeaderFail, ErrUnavailable},
		{status.Error(codes.Unavailable, "gone"), ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "message larger than max"), ErrTooLarge},
		{context.DeadlineExceeded, ErrUnavailable},
		{context.Canceled, context.Canceled},
	} {
		if got := etcdError(rpctypes.Error(test.err)); !errors.Is(got, test.want) {
			t.Errorf("%v: %v, want %v", test.err, got, test.want)
		}
		var unknown *UnsettledError
		if got := unsettled(t.Context(), rpctypes.Error(test.err)); !errors.Is(got, test.want) || errors.As(got, &unknown) != errors.Is(test.want, ErrUnavailable) {
			t.Errorf("of a transaction %v: %v, want %v", test.err, got, test.want)
		}
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := unsettled(late, rpctypes.ErrTimeout); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rpctypes.ErrTimeout) {
		t.Errorf("of a transaction after its deadline: %v", err)
	}
}
