package store

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"

	"hyperkube/components/logging/record"
)

// found has the matching records of one segment, sorted by time.
type found struct {
	entries []Entry
	err     error
}

// target is a segment that a search reads, or the pending block.
type target struct {
	seg              *segment
	size             int64
	minTime, maxTime int64
	pending          []Entry // if seg is nil
	result           chan found
}

// Search calls yield for each record that q selects, sorted by time, until it returns false. The texts are valid after the call. It returns the sequence
// number behind the records that it has searched; a Reader that begins there returns all later records.
func (s *Store) Search(ctx context.Context, q Query, yield func(Entry) bool) (uint64, error) {
	targets, next := s.targets(q)
	if q.Tail > 0 {
		return next, s.tail(ctx, q, targets, yield)
	}
	slices.SortStableFunc(targets, func(a, b *target) int { return cmp.Compare(a.minTime, b.minTime) })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := s.start(ctx, q, targets)
	defer r.wg.Wait()
	defer cancel()
	var merged entryHeap
	emit := func(before int64) bool {
		for len(merged) > 0 && merged[0][0].Time < before {
			e := merged[0][0]
			if merged[0] = merged[0][1:]; len(merged[0]) == 0 {
				heap.Pop(&merged)
			} else {
				heap.Fix(&merged, 0)
			}
			if !yield(e) {
				return false
			}
		}
		return true
	}
	for _, t := range targets {
		// All records before the first one of this segment are in the heap.
		if !emit(t.minTime) {
			return next, nil
		}
		f, err := r.records(ctx, t)
		if err != nil {
			return next, err
		}
		if len(f) > 0 {
			heap.Push(&merged, f)
		}
	}
	emit(1<<63 - 1)
	return next, nil
}

// tail calls yield for the newest records that q selects.
func (s *Store) tail(ctx context.Context, q Query, targets []*target, yield func(Entry) bool) error {
	slices.SortStableFunc(targets, func(a, b *target) int { return cmp.Compare(b.maxTime, a.maxTime) })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := s.start(ctx, q, targets)
	defer r.wg.Wait()
	defer cancel()
	var newest []Entry
	for _, t := range targets {
		if len(newest) == q.Tail && newest[0].Time > t.maxTime {
			break
		}
		f, err := r.records(ctx, t)
		if err != nil {
			return err
		}
		newest = append(newest, f...)
		slices.SortStableFunc(newest, func(a, b Entry) int {
			return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Seq, b.Seq))
		})
		newest = slices.Clone(newest[max(0, len(newest)-q.Tail):])
	}
	for _, e := range newest {
		if !yield(e) {
			break
		}
	}
	return nil
}

// running is a search whose goroutines are running.
type running struct {
	wg sync.WaitGroup
	// slots has an element for each target whose records are in memory or being read. Its capacity limits them.
	slots chan struct{}
}

// records returns the records of a target. It must be called for the targets in their order.
func (r *running) records(ctx context.Context, t *target) ([]Entry, error) {
	select {
	case f := <-t.result:
		if t.seg != nil {
			<-r.slots
		}
		return f.entries, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// targets returns what can contain records that q selects, and the sequence number behind them.
func (s *Store) targets(q Query) ([]*target, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*target
	for _, g := range s.segments {
		if !q.overlaps(g.minTime, g.maxTime) || !anyMatch(&q, g) {
			continue
		}
		out = append(out, &target{seg: g, size: g.size, minTime: g.minTime, maxTime: g.maxTime, result: make(chan found, 1)})
	}
	if p := &s.pending; p.count > 0 && q.overlaps(p.minTime, p.maxTime) {
		t := &target{minTime: p.minTime, maxTime: p.maxTime, result: make(chan found, 1)}
		t.pending = collect(&q, bytes.Clone(p.raw), p.sources, s.nextSeq-uint64(p.count), nil)
		sortByTime(t.pending)
		t.result <- found{entries: t.pending}
		out = append(out, t)
	}
	return out, s.nextSeq
}

func anyMatch(q *Query, g *segment) bool {
	for _, src := range g.sources {
		if q.Matches(src) {
			return true
		}
	}
	return false
}

// start starts to read the segments of the targets in their order, concurrently, but only a few more than the caller has received. The
// goroutines stop when ctx is done or everything is read.
func (s *Store) start(ctx context.Context, q Query, targets []*target) *running {
	workers := min(runtime.GOMAXPROCS(0), len(targets))
	r := &running{slots: make(chan struct{}, workers+1)}
	queue := make(chan *target)
	for range workers {
		r.wg.Go(func() {
			var b buffers
			for t := range queue {
				t.result <- s.searchSegment(&q, t, &b)
			}
		})
	}
	r.wg.Go(func() {
		defer close(queue)
		for _, t := range targets {
			if t.seg == nil {
				continue
			}
			select {
			case r.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			queue <- t // a worker is free soon, because results do not block it
		}
	})
	return r
}

// buffers are reused for the segments of a search.
type buffers struct{ file, raw []byte }

// searchSegment returns the records of a segment that q selects.
func (s *Store) searchSegment(q *Query, t *target, b *buffers) found {
	f, err := os.Open(t.seg.path)
	if errors.Is(err, fs.ErrNotExist) {
		return found{} // removed in the meantime, because it is the oldest
	}
	if err != nil {
		return found{err: fmt.Errorf("searching log store: %w", err)}
	}
	defer f.Close()
	b.file = slices.Grow(b.file[:0], int(t.size))[:t.size]
	if _, err := f.ReadAt(b.file, 0); err != nil {
		return found{err: fmt.Errorf("searching log store: %w", err)}
	}
	var out []Entry
	for rest := b.file; len(rest) > 0; {
		kind, payload, size, err := nextFrame(rest)
		if err != nil {
			return found{err: fmt.Errorf("searching log store: %s: %w", t.seg.path, err)}
		}
		rest = rest[size:]
		if kind != frameBlock {
			continue
		}
		h, data, err := decodeHeader(payload, false)
		if err != nil {
			return found{err: fmt.Errorf("searching log store: %s: %w", t.seg.path, err)}
		}
		if h.count == 0 || !q.overlaps(h.minTime, h.maxTime) {
			continue
		}
		sources, err := s.sourcesOf(t.seg, h)
		if err != nil {
			return found{err: fmt.Errorf("searching log store: %s: %w", t.seg.path, err)}
		}
		if !slices.ContainsFunc(sources, q.Matches) {
			continue
		}
		if b.raw, err = s.codec.decompress(h, data, b.raw); err != nil {
			return found{err: fmt.Errorf("searching log store: %s: %w", t.seg.path, err)}
		}
		if q.Text != nil && !q.Text.canMatch(b.raw) {
			continue
		}
		out = collect(q, b.raw, sources, h.firstSeq, out)
	}
	sortByTime(out)
	return found{entries: out}
}

// collect appends the records in raw that q selects to out. It copies their texts.
func collect(q *Query, raw []byte, sources []*record.Source, seq uint64, out []Entry) []Entry {
	matches := make([]bool, len(sources))
	for i, src := range sources {
		matches[i] = q.Matches(src)
	}
	var texts []byte // allocated together
	for d := (decoder{b: raw}); len(d.b) > 0; seq++ {
		i, r := d.record()
		if d.bad || i < 0 || i >= len(sources) {
			break
		}
		if !matches[i] || !q.matchesRecord(r) {
			continue
		}
		if cap(texts)-len(texts) < len(r.Text) {
			texts = make([]byte, 0, max(16<<10, len(r.Text)))
		}
		texts = append(texts, r.Text...)
		r.Text = texts[len(texts)-len(r.Text) : len(texts) : len(texts)]
		out = append(out, Entry{Seq: seq, Source: sources[i], Record: r})
	}
	return out
}

func sortByTime(list []Entry) {
	byTime := func(a, b Entry) int { return cmp.Compare(a.Time, b.Time) }
	if !slices.IsSortedFunc(list, byTime) {
		slices.SortStableFunc(list, byTime)
	}
}

// entryHeap is a heap of lists that are sorted by time, ordered by the first record of each.
type entryHeap [][]Entry

func (h entryHeap) Len() int { return len(h) }
func (h entryHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i][0].Time, h[j][0].Time), cmp.Compare(h[i][0].Seq, h[j][0].Seq)) < 0
}
func (h entryHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *entryHeap) Push(x any)   { *h = append(*h, x.([]Entry)) }
func (h *entryHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
