// Package pipe reads the output of processes that have exited from pipes and FIFOs that other processes may keep open.
package pipe

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Reader reads from a pipe, FIFO or terminal like the file itself, until the read deadline of the file has passed. Then
// it returns what the file contained at the first Read after the deadline, and os.ErrDeadlineExceeded at the end. The file
// alone returns the error although it contains data: on a busy machine, the goroutine that reads may not have run before
// the deadline. A Reader is not safe for concurrent use.
type Reader struct {
	file    *os.File
	expired bool
	pending int // bytes that the file contained after the deadline and that have not been read
}

var _ io.Reader = (*Reader)(nil)

// NewReader returns a Reader of file, which the caller closes.
func NewReader(file *os.File) *Reader { return &Reader{file: file} }

// Read implements io.Reader. After the deadline of the file it returns only the data that the pipe contained
// then, and at the end os.ErrDeadlineExceeded.
func (r *Reader) Read(p []byte) (int, error) {
	if !r.expired {
		n, err := r.file.Read(p)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	n := 0
	conn, err := r.file.SyscallConn()
	if err != nil {
		return 0, err // the file is closed
	}
	err = conn.Control(func(fd uintptr) {
		if !r.expired {
			r.expired, r.pending = true, Pending(int(fd))
		}
		if r.pending > 0 {
			n, _ = unix.Read(int(fd), p[:min(len(p), r.pending)])
		}
	})
	switch {
	case err != nil:
		return 0, err
	case n <= 0 && len(p) > 0:
		return 0, os.ErrDeadlineExceeded
	}
	r.pending -= n
	return n, nil
}

// Pending returns the number of bytes that can be read from the file descriptor of a pipe, FIFO or terminal without
// waiting. It returns 0 for other files.
func Pending(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}
