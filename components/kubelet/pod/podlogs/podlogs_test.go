package podlogs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"hyperkube/internal/testing/testwait"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte("2026-01-01T00:00:00.000000001Z stdout F text\n"))
	f.Add([]byte("2026-01-01T00:00:00Z stderr P:x a b"))
	f.Add([]byte("2026-01-01T00:00:00Z stdout F"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := Parse(raw)
		if err == nil && l.Stream != "stdout" && l.Stream != "stderr" {
			t.Errorf("stream %q", l.Stream)
		}
	})
}

func line(sec int, stream, tag, text string) string {
	return time.Date(2026, 1, 1, 0, 0, sec, 0, time.UTC).Format(time.RFC3339Nano) + " " + stream + " " + tag + " " + text + "\n"
}

func put(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	put(t, path, line(0, "stdout", "F", "a")+line(1, "stderr", "F", "b")+line(2, "stdout", "P", "c")+line(3, "stdout", "F", "d")+"rubbish\n")
	for _, c := range []struct {
		name     string
		o        Options
		out, err string
	}{
		{"all", Options{Tail: -1}, "a\ncd\n", "b\n"},
		{"tail", Options{Tail: 3}, "cd\n", ""},
		{"none", Options{}, "", ""},
		{"since", Options{Tail: -1, Since: time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)}, "cd\n", "b\n"},
		{"limit", Options{Tail: -1, Limit: 3}, "a\n", "b"},
		{"times", Options{Tail: 2, Timestamps: true}, "2026-01-01T00:00:03.000000000Z d\n", ""},
	} {
		var out, err bytes.Buffer
		if e := Read(context.Background(), path, c.o, &out, &err); e != nil {
			t.Errorf("%s: %v", c.name, e)
		}
		if out.String() != c.out || err.String() != c.err {
			t.Errorf("%s: got %q and %q, want %q and %q", c.name, out.String(), err.String(), c.out, c.err)
		}
	}
	if got := Tail(path, 80, 2048); got != "a\nb\ncd\n" {
		t.Errorf("Tail: %q", got)
	}
	if got := Tail(path, 80, 3); got != "cd\n" {
		t.Errorf("short Tail: %q", got)
	}
}

type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestFollowThroughRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	put(t, path, line(0, "stdout", "F", "a"))
	done := make(chan struct{})
	var out buffer
	ended := make(chan error, 1)
	go func() {
		ended <- Read(context.Background(), path, Options{Follow: true, Tail: -1, Done: done}, &out, &out)
	}()
	await := func(want string) {
		t.Helper()
		testwait.Succeed(t, "what is followed", func() error {
			if got := out.String(); got != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	}
	await("a\n")
	half := line(1, "stdout", "F", "b")
	put(t, path, half[:20])
	put(t, path, half[20:])
	await("a\nb\n")
	rotated, err := Rotation{MaxSize: 1, MaxFiles: 3}.Rotate(path, func() error {
		put(t, path, "")
		return nil
	})
	if err != nil || !rotated {
		t.Fatal(rotated, err)
	}
	put(t, path, line(2, "stderr", "F", "c"))
	await("a\nb\nc\n")
	put(t, path, line(3, "stdout", "F", "d"))
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await("a\nb\nc\nd\n")
}

// slow is a writer that blocks until the test unblocks it.
type slow struct {
	buffer
	began chan struct{} // closed at the first write
	let   chan struct{}
	once  sync.Once
}

func (s *slow) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.began) })
	<-s.let
	return s.buffer.Write(p)
}

// TestFollowSlowly checks that a slow reader also gets files that were rotated and compressed while
// it was reading.
func TestFollowSlowly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	put(t, path, line(0, "stdout", "F", "a"))
	out := &slow{began: make(chan struct{}), let: make(chan struct{})}
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Read(context.Background(), path, Options{Follow: true, Tail: -1, Done: done}, out, out)
	}()
	<-out.began
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Rotation{MaxSize: 1, MaxFiles: 6, Now: func() time.Time { return at }}
	for i, text := range []string{"b", "c", "d", "e"} {
		at = at.Add(time.Second)
		rotated, err := r.Rotate(path, func() error {
			put(t, path, line(i+1, "stdout", "F", text))
			return nil
		})
		if err != nil || !rotated {
			t.Fatal(rotated, err)
		}
	}
	if packed, err := filepath.Glob(path + ".*" + gz); err != nil || len(packed) != 3 {
		t.Fatalf("compressed: %v, %v", packed, err)
	}
	close(done)
	close(out.let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := out.String(); got != "a\nb\nc\nd\ne\n" {
		t.Errorf("got %q", got)
	}
}

// TestEventsLost checks that the log is read after an event overflow.
func TestEventsLost(t *testing.T) {
	w := &fsnotify.Watcher{Events: make(chan fsnotify.Event), Errors: make(chan error, 1)}
	w.Errors <- fsnotify.ErrEventOverflow
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := waitForData(ctx, w, nil, "0.log"); err != nil {
		t.Error(err)
	}
}

// TestRotateImmediately checks that two rotations within a second do not overwrite the first rotated
// file.
func TestRotateImmediately(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Rotation{MaxSize: 10, MaxFiles: 5, Now: func() time.Time { return at }}
	reopen := func() error { put(t, path, ""); return nil }
	for _, text := range []string{"first first first", "second second second"} {
		put(t, path, text)
		if again, err := r.Rotate(path, reopen); !again || err != nil {
			t.Fatal(again, err)
		}
	}
	at = at.Add(time.Second)
	if _, err := r.Rotate(path, reopen); err != nil {
		t.Fatal(err)
	}
	old, err := rotated(path)
	if err != nil || len(old) != 2 {
		t.Errorf("%v, %v", old, err)
	}
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Rotation{MaxSize: 10, MaxFiles: 3, Now: func() time.Time { at = at.Add(time.Second); return at }}
	for range 6 {
		put(t, path, strings.Repeat("x", 20))
		if ok, err := r.Rotate(path, func() error { put(t, path, ""); return nil }); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	old, err := rotated(path)
	if err != nil || len(old) != 2 || !strings.HasSuffix(old[0], ".gz") || strings.HasSuffix(old[1], ".gz") {
		t.Errorf("%v %v", old, err)
	}
	put(t, path, "x")
	if ok, err := r.Rotate(path, nil); ok || err != nil {
		t.Error("a small log was rotated", err)
	}
}
