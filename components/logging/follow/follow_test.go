package follow

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hyperkube/components/logging/record"
)

const container = "ns_pod_uid/c"

// logs writes numbered lines to the log of a container, and rotates it like the kubelet.
type logs struct {
	t          *testing.T
	root, dir  string
	generation int
	stamp      int
	written    int
}

func newLogs(t *testing.T) *logs {
	l := &logs{t: t, root: t.TempDir()}
	l.dir = filepath.Join(l.root, container)
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *logs) path() string { return filepath.Join(l.dir, fmt.Sprint(l.generation, ".log")) }

func (l *logs) check(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *logs) append(text string) {
	l.t.Helper()
	f, err := os.OpenFile(l.path(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	l.check(err)
	_, err = f.WriteString(text)
	l.check(errors.Join(err, f.Close()))
}

func (l *logs) write(count int) {
	l.t.Helper()
	var b strings.Builder
	for range count {
		fmt.Fprintf(&b, "line %06d\n", l.written)
		l.written++
	}
	l.append(b.String())
}

// rotate renames the file and creates a new one, and compresses the file that was rotated before.
func (l *logs) rotate() {
	l.t.Helper()
	old, err := filepath.Glob(l.path() + ".*[0-9]")
	l.check(err)
	for _, name := range old {
		data, err := os.ReadFile(name)
		l.check(err)
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err = z.Write(data)
		l.check(errors.Join(err, z.Close(), os.WriteFile(name+".tmp", b.Bytes(), 0o640), os.Rename(name+".tmp", name+".gz"), os.Remove(name)))
	}
	l.stamp++
	l.check(os.Rename(l.path(), fmt.Sprintf("%s.20261128-%06d", l.path(), l.stamp)))
	f, err := os.Create(l.path())
	l.check(errors.Join(err, f.Close()))
}

func (l *logs) follow(positions map[string]record.Position) *Follower {
	l.t.Helper()
	f, err := New(Config{PodLogs: l.root, Positions: positions, Settle: time.Microsecond, Log: slog.New(slog.DiscardHandler)})
	l.check(err)
	return f
}

// tracker collects what a Follower returns, and the position behind it.
type tracker struct {
	text     strings.Builder
	position record.Position
	deleted  bool
}

func (r *tracker) add(c Chunk) {
	r.deleted = r.deleted || c.Deleted
	r.text.Write(c.Data)
	if len(c.Data) > 0 {
		r.position = record.Position{File: c.Position.File, Offset: c.Position.Offset + int64(len(c.Data))}
	}
}

func (r *tracker) lines() int { return strings.Count(r.text.String(), "\n") }

// until reads until done returns true.
func (r *tracker) until(t *testing.T, f *Follower, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !done() {
		c, err := f.Next(ctx)
		if err != nil {
			t.Fatalf("after %d lines: %v", r.lines(), err)
		}
		r.add(c)
	}
}

// verify checks that the lines are all lines that were written, in order.
func (r *tracker) verify(t *testing.T, written int) {
	t.Helper()
	i := 0
	for line := range strings.Lines(r.text.String()) {
		if want := fmt.Sprintf("line %06d\n", i); line != want {
			t.Fatalf("line %d is %q", i, line)
		}
		i++
	}
	if i != written {
		t.Fatalf("%d lines, want %d", i, written)
	}
}

// TestRandom writes, rotates, restarts the container and the Follower at random. Every line is returned once, in order.
func TestRandom(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 0))
		l := newLogs(t)
		l.write(1)
		var got tracker
		f := l.follow(nil)
		for range 60 {
			switch n := random.IntN(12); {
			case n < 6:
				l.write(random.IntN(2000))
			case n < 8 && l.written > 0:
				l.rotate()
				l.write(1 + random.IntN(3))
			case n == 8:
				l.generation++
				l.write(1)
			case n == 9:
				f.Close()
				f = l.follow(map[string]record.Position{container: got.position})
			default:
				some := got.lines() + random.IntN(l.written-got.lines()+1)
				got.until(t, f, func() bool { return got.lines() >= some })
			}
		}
		got.until(t, f, func() bool { return got.lines() >= l.written })
		got.verify(t, l.written)
		f.Close()
	}
}

// TestDeleted checks that the rest of a deleted log is read, and its deletion reported, and that new containers are found.
func TestDeleted(t *testing.T) {
	l := newLogs(t)
	l.write(10)
	f := l.follow(nil)
	defer f.Close()
	var got tracker
	got.until(t, f, func() bool { return got.lines() == 10 })
	l.write(5)
	l.check(os.RemoveAll(filepath.Join(l.root, "ns_pod_uid")))
	got.until(t, f, func() bool { return got.deleted })
	got.verify(t, 15)
	if f.Sources() != 0 {
		t.Errorf("%d sources remain", f.Sources())
	}
	for i := range 3 {
		other := &logs{t: t, root: l.root, dir: filepath.Join(l.root, fmt.Sprintf("ns_new%d_uid/c", i))}
		l.check(os.MkdirAll(other.dir, 0o755))
		other.write(3)
		var more tracker
		more.until(t, f, func() bool { return more.lines() == 3 })
		more.verify(t, 3)
	}
}

// TestTruncated checks that a truncated file is read from its beginning.
func TestTruncated(t *testing.T) {
	l := newLogs(t)
	l.append("old line 1\nold line 2\n")
	f := l.follow(nil)
	defer f.Close()
	var got tracker
	got.until(t, f, func() bool { return got.lines() == 2 })
	l.check(os.Truncate(l.path(), 0))
	l.append("new\n")
	got.until(t, f, func() bool { return got.lines() == 3 })
	if !strings.HasSuffix(got.text.String(), "new\n") {
		t.Errorf("%q", got.text.String())
	}
}

// TestPartial checks that an incomplete line is returned only when it is complete or the next file has begun, and that a line longer than the buffer
// is returned in parts.
func TestPartial(t *testing.T) {
	l := newLogs(t)
	l.append("a\nb")
	f := l.follow(nil)
	defer f.Close()
	var got tracker
	got.until(t, f, func() bool { return got.lines() == 1 })
	if got.text.String() != "a\n" {
		t.Errorf("%q", got.text.String())
	}
	l.append("c\nd")
	got.until(t, f, func() bool { return got.lines() == 2 })
	l.rotate()
	l.append("e\n")
	got.until(t, f, func() bool { return got.lines() == 3 })
	long := strings.Repeat("x", readSize+100) + "\n"
	l.append(long)
	got.until(t, f, func() bool { return got.lines() == 4 })
	if got.text.String() != "a\nbc\nde\n"+long {
		t.Errorf("%.100q", got.text.String())
	}
}

// TestRemoved checks that the Follower continues with the oldest file if the one at its position was removed.
func TestRemoved(t *testing.T) {
	l := newLogs(t)
	l.write(100)
	f := l.follow(nil)
	var got tracker
	got.until(t, f, func() bool { return got.lines() == 100 })
	f.Close()
	l.rotate()
	l.append("after 1\n")
	l.rotate()
	l.append("after 2\n")
	old, err := filepath.Glob(filepath.Join(l.dir, "*.gz"))
	l.check(err)
	if len(old) != 1 {
		t.Fatal(old)
	}
	l.check(os.Remove(old[0]))
	f = l.follow(map[string]record.Position{container: got.position})
	defer f.Close()
	var rest tracker
	rest.until(t, f, func() bool { return rest.lines() == 2 })
	if rest.text.String() != "after 1\nafter 2\n" {
		t.Errorf("%q", rest.text.String())
	}
}

// TestNodeFiles checks the order of rotated files of nodes.
func TestNodeFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"main.log", "main.log.1", "main.log.10.gz", "main.log.2", "main.log.2.gz", "main.log-20260101", "other.log", "main.log.old", "mainx.log", "process.log", "process.log.20261128-230000.000002", "process.log.20261128-230000.000001"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for base, want := range map[string]string{
		"main":    "main.log-20260101 main.log.10.gz main.log.2 main.log.1 main.log",
		"process": "process.log.20261128-230000.000001 process.log.20261128-230000.000002 process.log",
	} {
		files, err := nodeFiles(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range files {
			names = append(names, filepath.Base(f.path))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
