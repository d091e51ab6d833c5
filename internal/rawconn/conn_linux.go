//go:build !race

package rawconn

import (
	"io"
	"net"
	"sync"
	"syscall"
	"unsafe"
)

// Conn returns a connection that reads and writes c so; c itself when it is not
// over TCP.
func (p *Pace) Conn(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	out := &conn{TCPConn: tcp, raw: raw, pace: p}
	out.in.try, out.out.try = out.in.read, out.out.write
	return out
}

// conn is a connection over TCP.
type conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	pace    *Pace
	in, out transfer
}

// transfer is what one direction is about. Its function is bound once, so that
// a call needs no memory.
type transfer struct {
	try func(fd uintptr) (done bool)

	mu   sync.Mutex // guards what follows, for the length of a call
	data []byte
	n    int // so much of it was done
	err  error
}

// Read as io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.in.run(c.raw.Read, p)
	c.pace.use()
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write as io.Writer.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.pace.use()
	return c.out.run(c.raw.Write, p)
}

// run transfers p, waiting where the kernel says that it would have to.
func (t *transfer) run(wait func(func(uintptr) bool) error, p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data, t.n, t.err = p, 0, nil
	err := wait(t.try)
	t.data = nil
	if t.err != nil {
		err = t.err
	}
	return t.n, err
}

// read takes what there is, and tells whether there was something.
func (t *transfer) read(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&t.data[0])), uintptr(len(t.data)))
		switch errno {
		case 0:
			t.n = int(n)
			return true
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
		default:
			t.err = &net.OpError{Op: "read", Net: "tcp", Err: errno}
			return true
		}
	}
}

// write writes as much as there is room for, and tells whether that was all.
func (t *transfer) write(fd uintptr) bool {
	for t.n < len(t.data) {
		rest := t.data[t.n:]
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)))
		switch errno {
		case 0:
			t.n += int(n)
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
		default:
			t.err = &net.OpError{Op: "write", Net: "tcp", Err: errno}
			return true
		}
	}
	return true
}
