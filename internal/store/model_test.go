package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var modelSteps = flag.Int("model.steps", 400, "number of random operations in the model test")

// model is a naive store that contains all changes of one collection in order.
type model struct {
	changes []modelChange
	// start is the first known revision.
	start int64
}

type modelChange struct {
	revision         int64
	key              string
	before, after    string
	existed, deleted bool
}

func (m *model) set(revision int64, key, value string) {
	before, existed := m.at(revision)[key]
	m.changes = append(m.changes, modelChange{revision, key, before, value, existed, false})
}

func (m *model) remove(revision int64, key string) {
	m.changes = append(m.changes, modelChange{revision, key, m.at(revision)[key], "", true, true})
}

func (m *model) at(revision int64) map[string]string {
	state := make(map[string]string)
	for _, ch := range m.changes {
		if ch.revision > revision {
			break
		}
		if ch.deleted {
			delete(state, ch.key)
		} else {
			state[ch.key] = ch.after
		}
	}
	return state
}

func (m *model) list(revision int64, opts ListOptions, match func(string) bool) []string {
	state := m.at(revision)
	out := []string{}
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if strings.HasPrefix(key, opts.Prefix) && key >= opts.From && match(state[key]) {
			out = append(out, key+"="+state[key])
		}
	}
	return out
}

func (m *model) events(since, until int64, wanted func(key string) bool, match func(string) bool) []string {
	var out []string
	for _, ch := range m.changes {
		if ch.revision <= since || ch.revision > until || !wanted(ch.key) {
			continue
		}
		if !(ch.existed && match(ch.before)) && !(!ch.deleted && match(ch.after)) {
			continue
		}
		switch {
		case ch.deleted:
			out = append(out, fmt.Sprintf("%d -%s %s", ch.revision, ch.key, ch.before))
		case !ch.existed:
			out = append(out, fmt.Sprintf("%d +%s %s", ch.revision, ch.key, ch.after))
		default:
			out = append(out, fmt.Sprintf("%d %s %s->%s", ch.revision, ch.key, ch.before, ch.after))
		}
	}
	return out
}

func anyValue(string) bool { return true }

func even(value string) bool { return strings.HasSuffix(value, "0") || strings.HasSuffix(value, "2") }

// indexedConfig returns a configuration with an index of whether values are even.
func indexedConfig(path string) CollectionConfig {
	cfg := collectionConfig(path)
	cfg.Indexes = []Index{
		{Name: "first", Of: func(e *Entry) string { return e.key[:1] }},
		{Name: "even", Of: func(e *Entry) string { return fmt.Sprint(even(valueOf(e))) }},
	}
	return cfg
}

func matcher(match func(string) bool) func(*Entry) bool {
	return func(e *Entry) bool { return match(valueOf(e)) }
}

// modelWatch collects the events of a watcher.
type modelWatch struct {
	opts  WatchOptions
	since int64
	match func(string) bool
	name  string
	got   []string
	err   error
	last  int64
}

func (w *modelWatch) run(ctx context.Context, c *Collection, watcher *Watcher, until func() int64) {
	defer watcher.Close()
	for {
		batch, err := watcher.Next(ctx)
		if err != nil {
			w.err = err
			return
		}
		for _, ev := range batch.Events {
			if ev.Revision <= w.last || ev.Revision > batch.Revision {
				// Events of one revision must be in one batch.
				w.err = fmt.Errorf("event at %d, batch to %d, after a batch to %d", ev.Revision, batch.Revision, w.last)
				return
			}
			w.got = append(w.got, showEvent(ev))
		}
		w.last = batch.Revision
		if end := until(); end > 0 && w.last >= end {
			return
		}
	}
}

// TestModel executes random operations and compares lists, exact lists and watches with the model.
func TestModel(t *testing.T) {
	defer localRevision.Store(false)
	for _, history := range []int{0, 20} {
		localRevision.Store(history > 0)
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("history %d, seed %d", history, seed), func(t *testing.T) {
				testModel(t, history, rand.New(rand.NewPCG(seed, 1)))
			})
		}
	}
}

func testModel(t *testing.T, history int, rnd *rand.Rand) {
	ctx := testContext(t)
	s := newStore(t, Config{History: history})
	cols := []*Collection{s.Collection(indexedConfig("services/specs")), s.Collection(indexedConfig("services/endpoints"))}
	models := []*model{{}, {}}
	namespaces := []string{"a/", "b/", "bb/"}
	randomKey := func() string { return namespaces[rnd.IntN(3)] + fmt.Sprint(rnd.IntN(8)) }

	// Create objects before the caches are filled.
	for i := range 10 {
		key := fmt.Sprintf("a/%d", i%8)
		resp, err := s.client.Put(ctx, cols[i%2].prefix+key, `{"data":{"v":"old`+fmt.Sprint(i)+`"}}`)
		if err != nil {
			t.Fatal(err)
		}
		models[i%2].set(resp.Header.Revision, key, fmt.Sprint("old", i))
	}
	for i, c := range cols {
		if _, err := c.Get(ctx, "x", 0); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		models[i].start = c.ring.start
	}

	var watches []*modelWatch
	var wg sync.WaitGroup
	var endMu sync.Mutex
	var end int64
	until := func() int64 { endMu.Lock(); defer endMu.Unlock(); return end }
	revision := int64(0)
	value := 0

	for step := range *modelSteps {
		value++
		switch action := rnd.IntN(20); {
		case action < 10: // a transaction on one collection or both
			var ops []Op
			var apply []func(revision int64)
			first, n := rnd.IntN(2), 1+rnd.IntN(2)
			for j := range n {
				i := (first + j) % 2
				c, m, key := cols[i], models[i], randomKey()
				text := fmt.Sprint("v", value)
				// Use the cache, even if it is stale; a conflict detects that.
				switch current, err := c.Get(ctx, key, -1); {
				case errors.Is(err, ErrNotFound):
					ops = append(ops, c.Create(key, configMap(key, text), 0))
					apply = append(apply, func(revision int64) { m.set(revision, key, text) })
				case err != nil:
					t.Fatal(err)
				case rnd.IntN(3) == 0:
					ops = append(ops, c.Delete(current))
					apply = append(apply, func(revision int64) { m.remove(revision, key) })
				default:
					ops = append(ops, c.Update(current, configMap(key, text), 0))
					apply = append(apply, func(revision int64) { m.set(revision, key, text) })
				}
			}
			_, revision = mustCommit(t, s, ops...)
			for _, f := range apply {
				f(revision)
			}
		case action == 10: // another client deletes a namespace in one revision
			i := rnd.IntN(2)
			resp, err := s.client.Delete(ctx, cols[i].prefix+"b/", clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			revision = resp.Header.Revision
			state := models[i].at(revision)
			for _, key := range slices.Sorted(maps.Keys(state)) {
				if strings.HasPrefix(key, "b/") {
					models[i].remove(revision, key)
				}
			}
		case action == 11: // keys of other programs, which increment the revision
			for _, key := range []string{"compact_rev_key", "/registry/unknown/x", "/registry/services/x", "/registry/services/specs"} {
				resp, err := s.client.Put(ctx, key, "x")
				if err != nil {
					t.Fatal(err)
				}
				revision = resp.Header.Revision
			}
		case action < 14: // a list
			i := rnd.IntN(2)
			match, opts := anyValue, ListOptions{Revision: -1}
			if rnd.IntN(2) == 0 {
				opts.Prefix = namespaces[rnd.IntN(3)]
			}
			if rnd.IntN(3) == 0 {
				match = even
				opts.Match = matcher(even)
				if rnd.IntN(2) == 0 {
					opts.Index, opts.Value = "even", "true"
				}
			}
			page := mustList(t, cols[i], opts)
			if page.Revision < revision {
				t.Fatalf("list at %d after a write at %d", page.Revision, revision)
			}
			if got, want := show(page.Entries), models[i].list(page.Revision, opts, match); !slices.Equal(got, want) {
				t.Fatalf("step %d: list %+v at %d:\n got %q\nwant %q", step, opts, page.Revision, got, want)
			}
		case action < 17: // pages at an exact revision
			i := rnd.IntN(2)
			at := models[i].start + rnd.Int64N(max(1, revision-models[i].start+1))
			checkPages(t, cols[i], models[i], at, 1+rnd.IntN(4), rnd.IntN(3) == 0, []string{"", "even", "unknown"}[rnd.IntN(3)])
		case len(watches) < 40: // a watch
			i := rnd.IntN(2)
			w := &modelWatch{match: anyValue, since: max(1, revision-rnd.Int64N(40))}
			wanted := func(string) bool { return true }
			w.opts.Since = w.since
			switch rnd.IntN(5) {
			case 0:
				prefix := namespaces[rnd.IntN(3)]
				w.opts.Prefix = prefix
				wanted = func(key string) bool { return strings.HasPrefix(key, prefix) }
			case 1:
				key := randomKey()
				w.opts.Key = key
				wanted = func(k string) bool { return k == key }
			case 2:
				w.match, w.opts.Match = even, matcher(even)
			case 3:
				w.match, w.opts.Match = even, matcher(even)
				w.opts.Index, w.opts.Value = "even", "true"
				if rnd.IntN(2) == 0 {
					prefix := namespaces[rnd.IntN(3)]
					w.opts.Prefix = prefix
					wanted = func(key string) bool { return strings.HasPrefix(key, prefix) }
				}
			}
			w.name = fmt.Sprintf("%s %q %q since %d", cols[i].cfg.Path, w.opts.Prefix, w.opts.Key, w.since)
			watcher, err := cols[i].Watch(ctx, w.opts)
			if errors.Is(err, ErrTooOld) {
				cols[i].mu.Lock()
				start := cols[i].ring.start
				cols[i].mu.Unlock()
				if w.since >= start {
					t.Fatalf("watch %s: %v, ring begins at %d", w.name, err, start)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			w.last = w.since
			watches = append(watches, w)
			wg.Go(func() { w.run(ctx, cols[i], watcher, until) })
			m := models[i]
			defer func() {
				if errors.Is(w.err, ErrTooOld) && history > 0 {
					return // the watcher was too slow
				}
				if w.err != nil {
					t.Errorf("watch %s: %v", w.name, w.err)
				}
				if want := m.events(w.since, w.last, wanted, w.match); !slices.Equal(w.got, want) {
					t.Errorf("watch %s to %d:\n got %q\nwant %q", w.name, w.last, w.got, want)
				}
			}()
		}
	}
	// The last write of each key terminates the watches.
	endMu.Lock()
	end = revision + 1
	endMu.Unlock()
	for i, c := range cols {
		for _, ns := range namespaces {
			for n := range 8 {
				key := ns + fmt.Sprint(n)
				value := fmt.Sprint("last", i, "0")
				resp, err := s.client.Put(ctx, c.prefix+key, `{"data":{"v":"`+value+`"}}`)
				if err != nil {
					t.Fatal(err)
				}
				models[i].set(resp.Header.Revision, key, value)
			}
		}
	}
	wg.Wait()
}

// checkPages compares all pages at a revision with the model.
func checkPages(t *testing.T, c *Collection, m *model, at int64, limit int, matched bool, index string) {
	t.Helper()
	opts := ListOptions{Revision: at, Exact: true, Limit: limit}
	match := anyValue
	if matched {
		match, opts.Match = even, matcher(even)
		opts.Index, opts.Value = index, "true"
	}
	want := m.list(at, opts, match)
	got := []string{}
	for {
		page := mustList(t, c, opts)
		if page.Revision != at || len(page.Entries) > limit {
			t.Fatalf("page of %d at %d, wanted %d at %d", len(page.Entries), page.Revision, limit, at)
		}
		got = append(got, show(page.Entries)...)
		if rest := int64(len(want) - len(got)); !matched && page.Remaining != rest || matched && page.Remaining != -1 && page.Next != "" {
			t.Fatalf("at %d: remaining %d, want %d", at, page.Remaining, rest)
		}
		if opts.From = page.Next; opts.From == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("pages at %d:\n got %q\nwant %q", at, got, want)
	}
}
