package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// benchCodec is as cheap as possible, so that benchmarks measure the store.
type benchCodec struct{}

func (benchCodec) Encode(runtime.Object) ([]byte, error) {
	data := make([]byte, 2048)
	binary.BigEndian.PutUint64(data, benchCounter.Add(1))
	return data, nil
}

func (benchCodec) Decode([]byte, int64) (runtime.Object, error) { return &corev1.ConfigMap{}, nil }

var benchCounter atomic.Uint64

func benchStore(b *testing.B, objects int) (*Store, *Collection, []*Entry) {
	s := newStore(b, Config{})
	cfg := collectionConfig("pods")
	cfg.Codec = benchCodec{}
	c := s.Collection(cfg)
	var entries []*Entry
	for i := range objects {
		made, _ := mustCommit(b, s, c.Create(fmt.Sprintf("ns%d/pod-%d", i%10, i), &corev1.ConfigMap{}, 0))
		entries = append(entries, made[0])
	}
	mustList(b, c, ListOptions{Revision: -1})
	b.ReportAllocs()
	b.ResetTimer()
	return s, c, entries
}

func BenchmarkGetCached(b *testing.B) {
	_, c, entries := benchStore(b, 1000)
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Get(ctx, entries[7].key, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetLinearizable(b *testing.B) {
	_, c, entries := benchStore(b, 1000)
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Get(ctx, entries[7].key, -1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetLinearizableLocal(b *testing.B) {
	localRevision.Store(true)
	defer localRevision.Store(false)
	_, c, entries := benchStore(b, 1000)
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Get(ctx, entries[7].key, -1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetLinearizableParallel(b *testing.B) {
	_, c, entries := benchStore(b, 1000)
	ctx := context.Background()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Get(ctx, entries[7].key, -1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkList1000(b *testing.B) {
	_, c, _ := benchStore(b, 1000)
	ctx := context.Background()
	for b.Loop() {
		if page, err := c.List(ctx, ListOptions{}); err != nil || len(page.Entries) != 1000 {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	s, c, entries := benchStore(b, 1)
	ctx := context.Background()
	e := entries[0]
	for b.Loop() {
		made, _, err := s.Commit(ctx, c.Update(e, &corev1.ConfigMap{}, 0))
		if err != nil {
			b.Fatal(err)
		}
		e = made[0]
	}
}

// BenchmarkCommitAndRead measures a write and the linearizable read after it.
func BenchmarkCommitAndRead(b *testing.B) {
	s, c, entries := benchStore(b, 1)
	ctx := context.Background()
	e := entries[0]
	for b.Loop() {
		if _, _, err := s.Commit(ctx, c.Update(e, &corev1.ConfigMap{}, 0)); err != nil {
			b.Fatal(err)
		}
		var err error
		if e, err = c.Get(ctx, e.key, -1); err != nil {
			b.Fatal(err)
		}
	}
}

// benchFanOut measures one write that is delivered to all watchers of everything. Watchers of other
// keys are not woken.
func benchFanOut(b *testing.B, all, elsewhere int) {
	s, c, entries := benchStore(b, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var ended, seen sync.WaitGroup
	watch := func(opts WatchOptions) {
		w, err := c.Watch(ctx, opts)
		if err != nil {
			b.Fatal(err)
		}
		ended.Go(func() {
			defer w.Close()
			for {
				batch, err := w.Next(ctx)
				if err != nil {
					return
				}
				for range batch.Events {
					seen.Done()
				}
			}
		})
	}
	for range all {
		watch(WatchOptions{})
	}
	for i := range elsewhere {
		watch(WatchOptions{Prefix: fmt.Sprintf("elsewhere%d/", i)})
	}
	e := entries[0]
	for b.Loop() {
		seen.Add(all)
		made, _, err := s.Commit(ctx, c.Update(e, &corev1.ConfigMap{}, 0))
		if err != nil {
			b.Fatal(err)
		}
		e = made[0]
		seen.Wait()
	}
	cancel()
	ended.Wait()
}

func BenchmarkFanOut(b *testing.B) {
	for _, n := range []struct{ all, elsewhere int }{{1, 0}, {50, 0}, {1, 1000}} {
		b.Run(fmt.Sprintf("%d of %d", n.all, n.all+n.elsewhere), func(b *testing.B) { benchFanOut(b, n.all, n.elsewhere) })
	}
}

func BenchmarkRoute(b *testing.B) {
	_, c, _ := benchStore(b, 0)
	key := []byte(c.prefix + "ns/" + strings.Repeat("x", 20))
	for b.Loop() {
		if c.store.route(key) != c {
			b.Fatal("lost")
		}
	}
}
