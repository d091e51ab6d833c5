// Package logs copies the output of containers to their log files, in the format that the kubelet
// and log collectors read, and to attached clients.
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

// Stream is the name of an output stream of a container, as log entries contain it.
type Stream string

// Stdout and Stderr are the output streams of a container.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// maxLine is the length in bytes at which a line of output is split into several log entries, as in other runtimes.
const maxLine = 16 << 10

// Path returns the path of a container's log file: name in the pod's log directory dir. A name that contains ".." stays
// within dir. The path is empty, which means no log, if dir or name is empty.
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

// Log is the log file of one container. Its methods are safe for concurrent use. A nil *Log stands for a container
// without a log file and discards everything.
type Log struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex // guards the fields below
	file     *os.File
	closed   bool
	failed   bool // the last write failed and was reported
	throttle throttle
}

// Open opens the log file at path for appending, and creates it and its directory if necessary. An empty path returns a
// nil Log. The log receives the first error of a series of failed writes.
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

// Reopen opens the log file at its path again, after the kubelet has renamed the old file to rotate it. It returns an
// error if the Log is closed or nil.
func (l *Log) Reopen() error {
	if l == nil {
		return errors.New("the container has no log file")
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return fmt.Errorf("creating log directory: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("opening log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		// The container has exited in the meantime; nothing would close the file again.
		f.Close()
		return fmt.Errorf("opening log: %w", os.ErrClosed)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	l.throttle.reset()
	return nil
}

// Close closes the file permanently: later writes are discarded.
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

// write appends complete log entries to the file. A write error must not stop the container, so the entries are lost
// and the error is logged once. The caller must wait for the returned duration before it writes more, see throttle.
func (l *Log) write(entries []byte) time.Duration {
	return l.writeNoted(entries, func(uint64, int64) {})
}

// writeNoted is write for a Spool, which must be able to determine after a crash whether the entries were appended.
// Before it writes, it calls note with the inode and size of the log file. These are 0 if the entries will not be in
// the log, because it is closed or because there are none. If the write fails, it calls note again with 0.
func (l *Log) writeNoted(entries []byte, note func(inode uint64, size int64)) time.Duration {
	if l == nil {
		note(0, 0)
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var st unix.Stat_t
	if l.file == nil || len(entries) == 0 || unix.Fstat(int(l.file.Fd()), &st) != nil {
		note(0, 0)
	} else {
		note(st.Ino, st.Size)
	}
	if l.file == nil || len(entries) == 0 {
		return 0
	}
	n, err := l.file.Write(entries)
	if err != nil {
		err = errors.Join(err, l.cutLocked(entries[:n]))
		note(0, 0)
	}
	l.complainLocked(err)
	return l.throttle.reserve(time.Now(), len(entries))
}

// cutLocked removes an incomplete entry from the end of the log after a failed write, because the next entry would be
// appended to it. written is the part of the last write that is in the file. The caller must hold mu.
func (l *Log) cutLocked(written []byte) error {
	torn := len(written) - (bytes.LastIndexByte(written, '\n') + 1)
	if torn == 0 {
		return nil
	}
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	return l.file.Truncate(info.Size() - int64(torn))
}

// complete reports whether a write of length bytes, which the previous runtime process has begun, is in the log in
// full. inode and size are those of the log file before the write. If the write is not complete, its part is removed
// from the log. If the file was rotated or emptied afterwards, complete returns true. The caller must ensure that the
// log is not written in the meantime.
func (l *Log) complete(inode uint64, size, length int64) (bool, error) {
	if l == nil {
		return true, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return true, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(l.file.Fd()), &st); err != nil {
		return false, err
	}
	// Another inode: it was rotated afterwards. Smaller: it was emptied afterwards.
	if st.Ino != inode || st.Size < size || st.Size >= size+length {
		return true, nil
	}
	return false, l.file.Truncate(size)
}

// complain logs that writing the container's log has failed. While writes continue to fail, it logs only once. A nil
// error means that a write has succeeded.
func (l *Log) complain(err error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complainLocked(err)
}

// complainLocked does what complain describes. The caller must hold mu.
func (l *Log) complainLocked(err error) {
	if err != nil && !l.failed {
		l.log.Warn("writing container output failed; while the log file cannot be written, output is lost, trying again with the next output; if err is about a spool, only the buffer before the log failed, and output is then written directly to the log", "file", l.path, "err", err)
	}
	l.failed = err != nil
}

// splitter converts the output of one stream to log entries in the format of the kubelet. It is not safe for concurrent
// use.
type splitter struct {
	stream  Stream
	pending []byte // an incomplete line, shorter than maxLine
	out     []byte // reused
}

// newSplitter returns a splitter for a stream.
func newSplitter(stream Stream) *splitter { return &splitter{stream: stream} }

// Add returns the log entries for the lines that chunk completes, with the timestamp now. A line longer than maxLine is
// split into partial entries, which are returned as soon as they are full. The rest of an incomplete line is kept for
// the next call. The result is valid until the next call.
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

// Flush returns an entry for an incomplete line at the end of the stream. The entry is marked as partial, because there
// is no newline, so readers of the log do not add one.
func (s *splitter) Flush(now time.Time) []byte {
	s.out = s.out[:0]
	if len(s.pending) > 0 {
		s.entry(now, 'P', nil)
	}
	return s.out
}

// entry appends a log entry with the pending line and rest to out. tag is 'F' for a complete line and 'P' for a partial
// one.
func (s *splitter) entry(now time.Time, tag byte, rest []byte) {
	s.out = now.AppendFormat(s.out, time.RFC3339Nano)
	s.out = append(append(append(s.out, ' '), s.stream...), ' ', tag, ' ')
	s.out = append(append(append(s.out, s.pending...), rest...), '\n')
	s.pending = s.pending[:0]
}

// Hub broadcasts the output of one stream of a container to attached clients. It never waits for a slow client but
// disconnects it. The zero value is ready to use. Its methods are safe for concurrent use.
type Hub struct {
	mu     sync.Mutex // guards the fields below
	closed bool
	subs   map[*Subscription]struct{}
}

// maxUnread is the maximum number of bytes that a Hub buffers for a client before it disconnects the client.
const maxUnread = 1 << 20

// Subscription is a client's reader of the stream of a Hub. Read and Close are safe for concurrent use.
type Subscription struct {
	hub *Hub

	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	err    error // set when the stream has ended
	closed bool
}

// ErrTooSlow is returned by Read when more than maxUnread bytes were unread and the client was disconnected.
var ErrTooSlow = errors.New("the reader is too slow for the container's output")

// Subscribe returns a reader of the stream's output from now on. Read returns io.EOF when the stream has ended. The
// caller must call Close.
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

// write sends p to all subscribers and disconnects those with too many unread bytes.
func (h *Hub) write(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.mu.Lock()
		if len(s.buf)+len(p) > maxUnread {
			s.err = ErrTooSlow
			delete(h.subs, s)
		} else {
			s.buf = append(s.buf, p...)
		}
		s.cond.Broadcast()
		s.mu.Unlock()
	}
}

// close ends the stream: subscribers get io.EOF after the unread bytes.
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

// Read waits for output of the stream. It returns io.EOF at the end of the stream, ErrTooSlow, or io.ErrClosedPipe
// after Close.
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

// Close cancels the subscription and wakes a blocked Read.
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

// Copy copies the output of a container from r to its log and to attached clients, until the stream ends. It is used
// instead of Spool.Copy for terminals, and when no spool could be opened.
func Copy(r io.Reader, stream Stream, log *Log, hub *Hub) {
	defer hub.close()
	copyTo(r, newSplitter(stream), log, hub)
}

// copyTo implements Copy with a splitter that may contain an incomplete line.
func copyTo(r io.Reader, split *splitter, log *Log, hub *Hub) {
	// The buffer grows only for containers that write much output.
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
