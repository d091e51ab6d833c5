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

// Options are the options of Read, as in a request for a pod's log.
type Options struct {
	Follow     bool
	Timestamps bool
	// Tail is the number of lines at the end to read. A negative value means all.
	Tail int64
	// Since is the earliest time. Zero means no limit.
	Since time.Time
	// Limit is the maximum number of bytes to write. 0 means no limit.
	Limit int64
	// Done is closed when the container has exited; it is nil if it has exited already. The log is
	// read to its end after that.
	Done <-chan struct{}
}

// errLimit is returned by the internal functions that write lines when the requested number of bytes is written.
// Read then returns nil.
var errLimit = errors.New("limit reached")

// Read writes the text of the log at path to the writers of its streams. A stream with a nil writer is
// skipped. It returns nil at the end of the log or, with Follow, at the end of the log after the container
// has exited. It continues in the new file when the log is rotated. It returns ctx's error when ctx is done.
func Read(ctx context.Context, path string, o Options, stdout, stderr io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	in := &source{f: f, r: f}
	defer func() { in.f.Close() }()
	offset, err := tailOffset(f, o.Tail)
	if err != nil {
		return fmt.Errorf("reading container log: %w", err)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("reading container log: %w", err)
	}
	var watcher *fsnotify.Watcher // nil if no more lines are expected
	if o.Follow && o.Done != nil {
		if watcher, err = fsnotify.NewWatcher(); err != nil {
			return fmt.Errorf("watching container log: %w", err)
		}
		defer watcher.Close()
		// Watch the directory, because rotation replaces the file.
		if err := watcher.Add(filepath.Dir(path)); err != nil {
			return fmt.Errorf("watching container log: %w", err)
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
		// A new file with the log's name means that this file is complete.
		if next := in.next(path); next != nil {
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
		if err := waitForData(ctx, watcher, done, path); err != nil {
			return err
		}
	}
}

// waitForData blocks until the file at path may have more data or the container has exited (done is closed).
// It returns an error if ctx is done or the watch fails.
func waitForData(ctx context.Context, watcher *fsnotify.Watcher, done <-chan struct{}, path string) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return nil
		case _, ok := <-watcher.Errors:
			if !ok {
				return errors.New("watching container log: watcher closed")
			}
			// Events were lost because of an overflow.
			return nil
		case ev, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching container log: watcher closed")
			}
			if filepath.Base(ev.Name) == filepath.Base(path) {
				return nil
			}
		}
	}
}

// writer writes records to the writers of their streams. left is the number of bytes until the limit.
type writer struct {
	o              Options
	stdout, stderr io.Writer
	left           int64
}

// drain writes all complete lines that r has. held is the beginning of the first line, from the previous
// call; the result is the incomplete last line for the next call. The error is errLimit when the limit is
// reached.
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
			return held, fmt.Errorf("reading container log: %w", err)
		}
		if err := w.line(part); err != nil {
			return nil, err
		}
		held = held[:0]
	}
}

// line writes the text of one record, unless it is malformed, too old, or its stream is skipped. It returns
// errLimit when the limit is reached.
func (w *writer) line(raw []byte) error {
	l, err := Parse(raw)
	if err != nil {
		// Skip malformed lines.
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
		return fmt.Errorf("writing container log: %w", err)
	}
	if w.o.Limit > 0 {
		if w.left -= int64(n); w.left <= 0 {
			return errLimit
		}
	}
	return nil
}

// rfc3339NanoFixed always has nine digits of a second, so that columns are aligned.
const rfc3339NanoFixed = "2006-01-02T15:04:05.000000000Z07:00"
