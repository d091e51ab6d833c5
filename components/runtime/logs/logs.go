// Package logs carries what a container writes to its log, in the format that
// the kubelet and log collectors read, and to whoever is attached.
//
// https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is where a container wrote.
type Stream string

// The streams there are.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// maxLine is where long lines are split, in bytes: as other runtimes do.
const maxLine = 16 << 10

// Path returns the file of a container's log: name inside of dir, wherever it
// tries to lead. It is empty if there is no name.
func Path(dir, name string) string {
	if dir == "" || name == "" {
		return ""
	}
	name = filepath.Clean("/" + name)
	if name == "/" {
		return ""
	}
	return filepath.Join(dir, name)
}

// Log is the log file of one container. Its methods are safe for several
// goroutines. A nil *Log takes everything and keeps nothing.
type Log struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex // guards what follows
	file     *os.File
	closed   bool
	failed   bool // the last write failed, and was told of
	throttle throttle
}

// Open opens or makes the log file at path and its folder. An empty path gives
// a nil Log.
func Open(path string, log *slog.Logger) (*Log, error) {
	if path == "" {
		return nil, nil
	}
	l := &Log{path: path, log: log}
	if err := l.Reopen(); err != nil {
		return nil, err
	}
	return l, nil
}

// Reopen opens the file anew, after it was rotated away.
func (l *Log) Reopen() error {
	if l == nil {
		return errors.New("the container has no log file")
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return fmt.Errorf("making the log's directory: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		// The container ended meanwhile: nobody would close it again.
		f.Close()
		return fmt.Errorf("opening the log: %w", os.ErrClosed)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	l.throttle.renew()
	return nil
}

// Close closes the file, for good.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// write appends whole entries. A log that cannot be written must not stop the
// container: the entries are lost and it is told once. The writer is to wait for
// the time that is returned before it writes more.
func (l *Log) write(entries []byte) time.Duration {
	if l == nil || len(entries) == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return 0
	}
	_, err := l.file.Write(entries)
	if err != nil && !l.failed {
		l.log.Warn("a container's log cannot be written", "file", l.path, "error", err)
	}
	l.failed = err != nil
	return l.throttle.wrote(time.Now(), len(entries))
}

// splitter makes log entries of the bytes of one stream. It is not for several
// goroutines.
type splitter struct {
	stream  Stream
	pending []byte // an unfinished line, shorter than maxLine
	out     []byte // reused
}

// newSplitter makes one for a stream.
func newSplitter(stream Stream) *splitter { return &splitter{stream: stream} }

// Add returns the entries that chunk completes, stamped with now. They are
// valid until the next call.
func (s *splitter) Add(now time.Time, chunk []byte) []byte {
	s.out = s.out[:0]
	for len(chunk) > 0 {
		end := bytes.IndexByte(chunk, '\n')
		part := chunk
		if end >= 0 {
			part = chunk[:end]
		}
		for len(s.pending)+len(part) > maxLine || end < 0 && len(s.pending)+len(part) == maxLine {
			n := maxLine - len(s.pending)
			s.entry(now, 'P', part[:n])
			part = part[n:]
		}
		if end < 0 {
			s.pending = append(s.pending, part...)
			break
		}
		s.entry(now, 'F', part)
		chunk = chunk[end+1:]
	}
	return s.out
}

// Flush returns an entry for what is left at the end of the stream. It is a
// partial one, since no newline ended it: readers then add none.
func (s *splitter) Flush(now time.Time) []byte {
	s.out = s.out[:0]
	if len(s.pending) > 0 {
		s.entry(now, 'P', nil)
	}
	return s.out
}

func (s *splitter) entry(now time.Time, tag byte, rest []byte) {
	s.out = now.AppendFormat(s.out, time.RFC3339Nano)
	s.out = append(append(append(s.out, ' '), s.stream...), ' ', tag, ' ')
	s.out = append(append(append(s.out, s.pending...), rest...), '\n')
	s.pending = s.pending[:0]
}

// Hub spreads one stream to those who are attached. A slow one is never waited
// for: it is cut off. The zero value is ready.
type Hub struct {
	mu     sync.Mutex // guards what follows
	closed bool
	subs   map[*Subscription]struct{}
}

// maxBehind is how many bytes a subscriber may be behind.
const maxBehind = 1 << 20

// Subscription reads what a Hub spreads. Read and Close may be called from
// several goroutines.
type Subscription struct {
	hub *Hub

	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	err    error // set once nothing more comes
	closed bool
}

// ErrTooSlow ends a subscription whose reader did not keep up.
var ErrTooSlow = errors.New("the reader is too slow for the container's output")

// Subscribe returns a reader of what comes from now on. It ends with io.EOF
// when the stream does.
func (h *Hub) Subscribe() *Subscription {
	s := &Subscription{hub: h}
	s.cond = sync.NewCond(&s.mu)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.err = io.EOF
		return s
	}
	if h.subs == nil {
		h.subs = map[*Subscription]struct{}{}
	}
	h.subs[s] = struct{}{}
	return s
}

func (h *Hub) write(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.mu.Lock()
		if len(s.buf)+len(p) > maxBehind {
			s.err = ErrTooSlow
			delete(h.subs, s)
		} else {
			s.buf = append(s.buf, p...)
		}
		s.cond.Broadcast()
		s.mu.Unlock()
	}
}

func (h *Hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subs {
		s.mu.Lock()
		s.err = io.EOF
		s.cond.Broadcast()
		s.mu.Unlock()
	}
	h.subs = nil
}

// Read implements io.Reader.
func (s *Subscription) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buf) == 0 && s.err == nil && !s.closed {
		s.cond.Wait()
	}
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	if len(s.buf) == 0 {
		return 0, s.err
	}
	n := copy(p, s.buf)
	s.buf = s.buf[n:]
	if len(s.buf) == 0 {
		s.buf = nil
	}
	return n, nil
}

// Close ends the subscription.
func (s *Subscription) Close() error {
	s.hub.mu.Lock()
	delete(s.hub.subs, s)
	s.hub.mu.Unlock()
	s.mu.Lock()
	s.closed = true
	s.cond.Broadcast()
	s.mu.Unlock()
	return nil
}

// Copy carries a container's stream from r to its log and to those attached,
// until the stream ends.
func Copy(r io.Reader, stream Stream, log *Log, hub *Hub) {
	defer hub.close()
	split := newSplitter(stream)
	// It grows only for containers that write much at once.
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			wait := log.write(split.Add(time.Now(), buf[:n]))
			hub.write(buf[:n])
			if wait > 0 {
				time.Sleep(wait)
			}
		}
		if err != nil {
			log.write(split.Flush(time.Now()))
			return
		}
		if n == len(buf) && n < 64<<10 {
			buf = make([]byte, 4*n)
		}
	}
}
