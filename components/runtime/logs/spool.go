package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/pipe"
)

// Spool is a file that buffers one output stream of a container between its FIFO and its log. The kernel moves bytes
// from the FIFO to the end of the file atomically, so that none are lost if the runtime is killed: each byte is either
// in the FIFO or in the file. A mark at the beginning of the file records how much of its content has been written to
// the log. The next runtime process continues there, and neither repeats nor splits a line.
//
// Content that has been written to the log is deallocated by punching a hole in the file, so offsets only grow. A Spool
// is not safe for concurrent use.
type Spool struct {
	file *os.File
	// Offsets in the content of the file: bytes before logged are in the log, bytes before end have been moved from the
	// FIFO, and bytes before holed have been deallocated.
	logged, end, holed int64
	// expired is set when the read deadline of the FIFO has passed. pending is the number of bytes that the FIFO contained
	// then and that have not been moved yet.
	expired bool
	pending int
}

const (
	// spoolContent is the offset in the file of a Spool at which the output begins. The bytes before it are the
	// header, which records how much of the output is in the log.
	spoolContent = 4 << 10
	// spoolHole is the number of bytes that are deallocated together.
	spoolHole = 16 << 10
	// spoolChunk is the maximum number of bytes that are moved from the FIFO at a time.
	spoolChunk = 64 << 10
)

// mark is the header of a spool's file. It is written before entries are appended to the log. After a crash, the next
// runtime process determines from it whether the entries are in the log in full, see Log.complete.
type mark struct {
	// Before and After are the offset up to which the content is in the log, before the entries are appended and after.
	Before, After int64
	// Inode and Size are the log's before that, and Length is that of the entries.
	Inode        uint64
	Size, Length int64
}

// OpenSpool opens or creates the spool at path and determines how much of its content is in log. If the previous
// runtime process was killed while it wrote an entry, the incomplete entry is removed from log, and Copy writes it
// again. No other goroutine may write to log in the meantime.
func OpenSpool(path string, log *Log) (*Spool, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a spool: %w", err)
	}
	s := &Spool{file: f}
	var m mark
	if err := binary.Read(f, binary.NativeEndian, &m); err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, fmt.Errorf("reading spool %s: %w", path, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		s.logged, s.end = m.Before, max(m.Before, size-spoolContent)
		var complete bool
		if complete, err = log.complete(m.Inode, m.Size, m.Length); complete {
			s.logged = min(m.After, s.end)
		} else if err == nil {
			// The other stream's entries may soon take the place in the log of those that were not appended.
			err = s.note(mark{After: s.logged})
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("reading spool %s: %w", path, err)
	}
	s.holed = s.logged &^ (spoolHole - 1)
	return s, nil
}

// Copy moves the output of a container from fifo through the spool to its log and to the clients of hub. It returns
// when the stream ends or the read deadline of fifo expires; it then writes an incomplete last line too. It also
// returns when another goroutine closes fifo because the runtime stops; an incomplete line then stays in the spool for
// the next runtime process. If the spool cannot be written, it continues without it. Copy closes the spool.
func (s *Spool) Copy(fifo *os.File, stream Stream, log *Log, hub *Hub) {
	defer hub.close()
	defer s.file.Close()
	split := newSplitter(stream)
	buf := make([]byte, 4<<10)
	read := s.logged
	for {
		for read < s.end {
			n, err := s.file.ReadAt(buf[:min(int64(len(buf)), s.end-read)], spoolContent+read)
			if n == 0 {
				log.complain(err)
				read = s.end
				break
			}
			read += int64(n)
			wait := s.write(log, split.Add(time.Now(), buf[:n]), read-int64(len(split.pending)))
			hub.write(buf[:n])
			if wait > 0 {
				time.Sleep(wait)
			}
			if n == len(buf) && n < spoolChunk {
				buf = make([]byte, 4*n)
			}
		}
		switch err := s.take(fifo); {
		case err == nil:
		case errors.Is(err, errClosed):
			return
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			s.write(log, split.Flush(time.Now()), read)
			return
		default:
			// The disk or the memory is full. The container must not wait for that.
			log.complain(err)
			_ = s.note(mark{After: read})
			copyTo(pipe.NewReader(fifo), split, log, hub)
			return
		}
	}
}

// errClosed is returned by take when another goroutine has closed the FIFO.
var errClosed = errors.New("the FIFO is closed")

// take waits until the FIFO contains data and moves it to the end of the spool. It returns io.EOF at the end of the
// stream and errClosed when fifo was closed. After the read deadline of fifo, it moves what fifo contained at the first
// call after the deadline, and then returns os.ErrDeadlineExceeded: on a busy machine, Copy may not have read yet when the
// deadline is set.
func (s *Spool) take(fifo *os.File) error {
	conn, err := fifo.SyscallConn()
	if err != nil {
		return errClosed
	}
	var n int64
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		for {
			at := spoolContent + s.end
			n, failed = unix.Splice(int(fd), nil, int(s.file.Fd()), &at, spoolChunk, unix.SPLICE_F_NONBLOCK)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = conn.Control(func(fd uintptr) { n, failed = s.takePending(int(fd)) }) // n stays 0 if fifo is closed
		if n <= 0 {
			return err
		}
	case err != nil:
		return errClosed
	case failed != nil:
		return fmt.Errorf("writing to a spool: %w", failed)
	case n == 0:
		return io.EOF
	}
	s.end += n
	return nil
}

// takePending moves data of the FIFO fd, whose read deadline has passed, to the end of the spool, without waiting. It
// returns 0 when it has moved what fd contained at the first call.
func (s *Spool) takePending(fd int) (int64, error) {
	if !s.expired {
		s.expired = true
		s.pending = pipe.Pending(fd)
	}
	if s.pending <= 0 {
		return 0, nil
	}
	at := spoolContent + s.end
	n, err := unix.Splice(fd, nil, int(s.file.Fd()), &at, min(s.pending, spoolChunk), unix.SPLICE_F_NONBLOCK)
	s.pending -= int(max(n, 0))
	return n, err
}

// write appends entries to the log. offset is the end of the content of the spool that these entries contain. It
// returns how long the caller must wait before the next call, see throttle.
func (s *Spool) write(log *Log, entries []byte, offset int64) time.Duration {
	if offset == s.logged {
		return 0
	}
	wait := log.writeNoted(entries, func(inode uint64, size int64) {
		// If this fails, a successor may repeat the entries.
		_ = s.note(mark{Before: s.logged, After: offset, Inode: inode, Size: size, Length: int64(len(entries))})
	})
	s.logged = offset
	if to := s.logged &^ (spoolHole - 1); to > s.holed {
		// If it fails, the file is larger than it need be.
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, spoolContent+s.holed, to-s.holed)
		s.holed = to
	}
	return wait
}

// note writes m to the header of the spool's file, where it replaces the previous mark.
func (s *Spool) note(m mark) error {
	data, err := binary.Append(nil, binary.NativeEndian, m)
	if err == nil {
		_, err = s.file.WriteAt(data, 0)
	}
	return err
}
