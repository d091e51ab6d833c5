package podlogs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options of Read, as a request for a pod's log has them.
type Options struct {
	Follow     bool
	Timestamps bool
	// Tail is how many lines at the end; negative is all.
	Tail int64
	// Since is the earliest time; zero is any.
	Since time.Time
	// Limit is how many bytes are written at most; 0 is no limit.
	Limit int64
	// Done is closed when the container has ended; nil when it has. What is
	// there then is still read.
	Done <-chan struct{}
}

// ErrLimit ends a Read inside; callers do not see it.
var errLimit = errors.New("limit reached")

// Read writes the log at path to the writers of its streams. A nil writer
// leaves its stream out. It returns when the log has ended or, with Follow,
// when the container and then its log have.
func Read(ctx context.Context, path string, o Options, stdout, stderr io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	in := &source{f: f, r: f}
	defer func() { in.f.Close() }()
	offset, err := tailOffset(f, o.Tail)
	if err != nil {
		return fmt.Errorf("reading a container's log: %w", err)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("reading a container's log: %w", err)
	}
	var watcher *fsnotify.Watcher // nil when nothing is awaited
	if o.Follow && o.Done != nil {
		if watcher, err = fsnotify.NewWatcher(); err != nil {
			return fmt.Errorf("watching a container's log: %w", err)
		}
		defer watcher.Close()
		// The directory is watched, for the file is replaced when it rotates.
		if err := watcher.Add(filepath.Dir(path)); err != nil {
			return fmt.Errorf("watching a container's log: %w", err)
		}
	}
	w := writer{o: o, stdout: stdout, stderr: stderr, left: o.Limit}
	r := bufio.NewReaderSize(f, 16<<10)
	var held []byte
	done := o.Done
	for {
		ended := false
		if watcher != nil {
			select {
			case <-done:
				ended = true
			default:
			}
		}
		held, err = w.drain(ctx, r, held)
		if errors.Is(err, errLimit) {
			return nil
		}
		if err != nil {
			return err
		}
		// A new file of that name means that this one is complete.
		if next := in.after(path); next != nil {
			_, err = w.drain(ctx, r, held)
			in.f.Close()
			in, held = next, nil
			r.Reset(in.r)
			if errors.Is(err, errLimit) {
				return nil
			}
			if err != nil {
				return err
			}
			continue
		}
		if watcher == nil || ended {
			return nil
		}
		if err := await(ctx, watcher, done, path); err != nil {
			return err
		}
	}
}

// await blocks until the file at path may have more.
func await(ctx context.Context, watcher *fsnotify.Watcher, done <-chan struct{}, path string) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return nil
		case _, ok := <-watcher.Errors:
			if !ok {
				return errors.New("watching a container's log ended")
			}
			// Events were lost, for there were too many.
			return nil
		case ev, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching a container's log ended")
			}
			if filepath.Base(ev.Name) == filepath.Base(path) {
				return nil
			}
		}
	}
}

type writer struct {
	o              Options
	stdout, stderr io.Writer
	left           int64
}

// drain writes all complete lines there are; what is left of one is returned,
// to be given again.
func (w *writer) drain(ctx context.Context, r *bufio.Reader, held []byte) ([]byte, error) {
	for {
		if ctx.Err() != nil {
			return held, ctx.Err()
		}
		part, err := r.ReadSlice('\n')
		if len(held) > 0 || err != nil {
			held = append(held, part...)
			part = held
		}
		switch {
		case errors.Is(err, io.EOF):
			return held, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return held, fmt.Errorf("reading a container's log: %w", err)
		}
		if err := w.line(part); err != nil {
			return nil, err
		}
		held = held[:0]
	}
}

func (w *writer) line(raw []byte) error {
	l, err := Parse(raw)
	if err != nil {
		// What no runtime wrote is passed over.
		return nil
	}
	if !w.o.Since.IsZero() && l.Time.Before(w.o.Since) {
		return nil
	}
	out := w.stdout
	if l.Stream == "stderr" {
		out = w.stderr
	}
	if out == nil {
		return nil
	}
	text := l.Text
	if w.o.Timestamps {
		text = append([]byte(l.Time.Format(rfc3339NanoFixed)+" "), text...)
	}
	if !l.Partial {
		text = append(slices.Clip(text), '\n')
	}
	if w.o.Limit > 0 && int64(len(text)) >= w.left {
		text = text[:w.left]
	}
	n, err := out.Write(text)
	if err != nil {
		return fmt.Errorf("writing a container's log: %w", err)
	}
	if w.o.Limit > 0 {
		if w.left -= int64(n); w.left <= 0 {
			return errLimit
		}
	}
	return nil
}

// rfc3339NanoFixed has all nine digits, so that columns stand below each other.
const rfc3339NanoFixed = "2006-01-02T15:04:05.000000000Z07:00"
