package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/logging/record"
	"hyperkube/internal/testing/testdisk"
)

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func search(t testing.TB, s *Store, q Query) []string {
	t.Helper()
	var out []string
	if _, err := s.Search(t.Context(), q, func(e Entry) bool {
		out = append(out, fmt.Sprintf("%d %s/%s %s", e.Time, e.Source.Namespace, e.Source.Pod, e.Text))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// model is a store without a limit that searches all records one by one.
type model []Entry

func (m model) search(q Query, expr string) []string {
	matches := slices.Clone(m)
	re := regexp.MustCompile(expr)
	matches = slices.DeleteFunc(matches, func(e Entry) bool {
		return !q.Matches(e.Source) || e.Time < q.Since || q.Until != 0 && e.Time >= q.Until || !re.Match(e.Text)
	})
	slices.SortStableFunc(matches, func(a, b Entry) int { return cmp.Compare(a.Time, b.Time) })
	if q.Tail > 0 {
		matches = matches[max(0, len(matches)-q.Tail):]
	}
	var out []string
	for _, e := range matches {
		out = append(out, fmt.Sprintf("%d %s/%s %s", e.Time, e.Source.Namespace, e.Source.Pod, e.Text))
	}
	return out
}

// TestModel compares the store with a naive model: random records of random sources, blocks, restarts and searches.
func TestModel(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		cfg := Config{Dir: t.TempDir(), SegmentBytes: int64(1 + random.IntN(3000))}
		s := open(t, cfg)
		var sources []*record.Source
		for i := range 5 {
			sources = append(sources, &record.Source{
				Namespace: fmt.Sprintf("ns%d", i%2), Pod: fmt.Sprintf("pod%d", i), Container: "c", Labels: map[string]string{"app": fmt.Sprint(i % 3)},
			})
		}
		var m model
		positions := map[string]record.Position{}
		words := []string{"error", "ok", "user=1 failed", "x"}
		for step := range 400 {
			switch n := random.IntN(20); {
			case n < 15:
				i := random.IntN(len(sources))
				r := record.Record{Time: int64(step/3*10 + random.IntN(40)), Stream: record.Stdout, Text: []byte(fmt.Sprintf("%s %d", words[random.IntN(len(words))], step))}
				s.Append(sources[i], r)
				m = append(m, Entry{Source: sources[i], Record: r})
				p := record.Position{File: record.FileID{Generation: uint64(i), Hash: random.Uint64(), HashLen: 9}, Offset: int64(step)}
				s.Advance(fmt.Sprint(i), p)
				positions[fmt.Sprint(i)] = p
			case n < 18:
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
			default:
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open(t, cfg)
				if got := s.Positions(); !maps.Equal(got, positions) {
					t.Fatalf("seed %d: positions %v, want %v", seed, got, positions)
				}
			}
			if step%10 != 0 {
				continue
			}
			expr := []string{"", "error", "user=\\d failed", "(?i)ERROR 1", "^x", "o.*1"}[random.IntN(6)]
			q := Query{Namespace: []string{"", "ns0", "ns1"}[random.IntN(3)], Tail: []int{0, 0, 1, 7}[random.IntN(4)]}
			if random.IntN(2) == 0 {
				q.Labels = labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(random.IntN(3))})
			}
			if random.IntN(2) == 0 {
				q.Since = int64(random.IntN(step*4 + 1))
				q.Until = q.Since + int64(random.IntN(500))
			}
			if expr != "" {
				var err error
				if q.Text, err = NewPattern(expr); err != nil {
					t.Fatal(err)
				}
			}
			got, want := search(t, s, q), m.search(q, expr)
			if q.Tail > 0 { // the order of records with the same time is not defined
				slices.Sort(got)
				slices.Sort(want)
				if len(got) == len(want) && len(got) > 0 && timesOf(got) == timesOf(want) {
					continue
				}
			}
			if !sameRecords(got, want) {
				t.Fatalf("seed %d step %d, query %+v, expression %q:\ngot  %q\nwant %q", seed, step, q, expr, got, want)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func timesOf(list []string) string {
	var out []string
	for _, l := range list {
		at, _, _ := strings.Cut(l, " ")
		out = append(out, at)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// sameRecords reports whether both lists have the same records, with their times in the same order.
func sameRecords(a, b []string) bool {
	ordered := slices.IsSortedFunc(a, func(x, y string) int { return cmp.Compare(timeOf(x), timeOf(y)) })
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return ordered && slices.Equal(a, b)
}

func timeOf(line string) (n int64) {
	_, _ = fmt.Sscan(line, &n)
	return n
}

// TestReader checks that a Reader returns each record once, across blocks, segments, restarts and removals.
func TestReader(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), SegmentBytes: 500}
	s := open(t, cfg)
	src := &record.Source{Namespace: "n", Pod: "p"}
	total := 0
	add := func(count int) {
		for range count {
			s.Append(src, record.Record{Time: int64(total), Text: []byte(fmt.Sprint(total))})
			total++
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	var next uint64
	read := func() {
		t.Helper()
		r := s.NewReader(next)
		defer r.Close()
		for {
			b, err := r.TryNext()
			if err != nil {
				t.Fatal(err)
			}
			if b.Next == 0 {
				break
			}
			for _, e := range b.Entries {
				if e.Seq != next || string(e.Text) != fmt.Sprint(next) {
					t.Fatalf("record %d %q, want %d", e.Seq, e.Text, next)
				}
				next++
			}
			if b.Removed != 0 || b.Next != next {
				t.Fatalf("%d removed, next %d, want %d", b.Removed, b.Next, next)
			}
		}
		if next != uint64(total) {
			t.Fatalf("read %d of %d records", next, total)
		}
	}
	for range 20 {
		add(7)
		add(50)
		read()
		add(3)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, cfg)
		read()
	}
	// The oldest segments are removed, and a reader that has not read them gets the number of missing records.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.MaxBytes = 3000
	s = open(t, cfg)
	defer s.Close()
	for range 50 {
		add(50)
	}
	if size := s.Stats().Size; size > cfg.MaxBytes {
		t.Errorf("the store has %d bytes", size)
	}
	r := s.NewReader(0)
	defer r.Close()
	b, err := r.TryNext()
	if err != nil || b.Removed == 0 || b.Entries[0].Seq != b.Removed {
		t.Errorf("%d records removed, %v", b.Removed, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	last := s.NewReader(uint64(total))
	defer last.Close()
	cancel()
	if _, err := last.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("reading behind the end: %v", err)
	}
}

// TestRecovery cuts the last segment at every length, as a killed process does, and damages bytes. The store opens, has a prefix of the records, and the
// position that belongs to it.
func TestRecovery(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	src := &record.Source{Namespace: "n", Pod: "p"}
	for i := range 10 {
		s.Append(src, record.Record{Time: int64(i), Text: []byte(fmt.Sprint("record ", i))})
		s.Advance("k", record.Position{Offset: int64(i + 1)})
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(t.TempDir(), filepath.Base(files[0]))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, Config{Dir: filepath.Dir(path), Log: quiet})
		got := search(t, s, Query{})
		for i, line := range got {
			if !strings.HasSuffix(line, fmt.Sprint("record ", i)) {
				t.Fatalf("%s: record %d is %q", name, i, line)
			}
		}
		if at := s.Positions()["k"].Offset; at != int64(len(got)) {
			t.Fatalf("%s: %d records, but position %d", name, len(got), at)
		}
		// The store continues.
		s.Append(src, record.Record{Time: 100, Text: []byte("more")})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Dir: filepath.Dir(path), Log: quiet})
		if again := search(t, s, Query{}); len(again) != len(got)+1 {
			t.Fatalf("%s: %d records after %d and one more", name, len(again), len(got))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; n < len(data); n += 3 {
		check(fmt.Sprint("cut at ", n), data[:n])
	}
	for i := 0; i < len(data); i += 3 {
		damaged := slices.Clone(data)
		damaged[i] ^= 0x10
		check(fmt.Sprint("damaged at ", i), damaged)
	}
}

// TestFullDisk fills the disk at every point of writing a block. Flush returns an error, nothing is lost, and the store continues when there is space.
func TestFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	cfg := Config{Dir: filepath.Join(disk.Path, "store"), SegmentBytes: 1, Log: quiet}
	s := open(t, cfg)
	src := &record.Source{Namespace: "n", Pod: "p"}
	text := func(i int) []byte {
		random := rand.New(rand.NewPCG(uint64(i), 1)) // does not compress
		out := []byte(fmt.Sprintf("%06d ", i))
		for range 9000 {
			out = append(out, byte('!'+random.IntN(90)))
		}
		return out
	}
	total := 0
	disk.FailEach(func(int) error {
		if _, pending := s.Pending(); pending == 0 {
			s.Append(src, record.Record{Time: int64(total), Text: text(total)})
			total++
			s.Advance("k", record.Position{Offset: int64(total)})
		}
		// Only one segment, so that none can be removed.
		s.mu.Lock()
		for len(s.segments) > 0 {
			if err := s.removeOldestLocked(); err != nil {
				t.Fatal(err)
			}
		}
		s.mu.Unlock()
		return s.Flush()
	}, func(err error) {
		if size, _ := s.Pending(); size == 0 || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("after %v, %d bytes are pending", err, size)
		}
	})
	for range 3 {
		s.Append(src, record.Record{Time: int64(total), Text: text(total)})
		total++
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if s.Stats().Failures == 0 {
		t.Error("no failures were counted")
	}
	// With older segments, those are removed, and the newest record is stored.
	disk.Leave(testdisk.Space{Blocks: 1, Inodes: 100})
	s.Append(src, record.Record{Time: 1 << 40, Text: text(1 << 20)})
	if err := s.Flush(); err != nil {
		t.Errorf("with old segments to remove: %v", err)
	}
	disk.Free()
	if got := search(t, s, Query{Since: 1 << 40}); len(got) != 1 {
		t.Errorf("%d new records", len(got))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s = open(t, cfg); s.Positions()["k"].Offset == 0 {
		t.Error("the position is lost")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRequiredLiteral(t *testing.T) {
	for expr, want := range map[string]struct {
		literal string
		whole   bool
	}{
		"error": {"error", true}, "": {"", false}, `user=\d+ failed`: {" failed", false}, "(?i)Error": {"error", false}, "(?i)é": {"", false}, "a|b": {"", false},
		"(timeout)+x": {"timeout", false}, "^GET": {"GET", false}, "x*yy": {"yy", false}, "(ab){2}": {"abab", false},
	} {
		p, err := NewPattern(expr)
		if err != nil {
			t.Fatal(err)
		}
		if string(p.literal) != want.literal && !(strings.Contains(want.literal, string(p.literal)) && len(p.literal) > 0) || p.whole != want.whole {
			t.Errorf("%s: %q whole %t, want %+v", expr, p.literal, p.whole, want)
		}
	}
	p, err := NewPattern("(?i)ask")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"xASKx": true, "aſ\u212a": true, "asi": false, "as": false, "": false} {
		if p.Match([]byte(text)) != want {
			t.Errorf("%q does not match: %t", text, want)
		}
	}
	if _, err := NewPattern("("); err == nil || !strings.Contains(err.Error(), "invalid regular expression") {
		t.Error(err)
	}
}
