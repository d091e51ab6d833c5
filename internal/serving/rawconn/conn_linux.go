//go:build !race

package rawconn

import (
	"io"
	"net"
	"sync"
	"syscall"
	"unsafe"
)

// Conn returns a connection that reads and writes c with raw system calls. It returns c itself if c is not a TCP
// connection.
func (p *MonitorWaker) Conn(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	out := &conn{TCPConn: tcp, raw: raw, waker: p}
	out.in.try, out.out.try = out.in.read, out.out.write
	return out
}

// conn is a TCP connection that reads and writes with raw system calls.
type conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	waker   *MonitorWaker
	in, out transfer
}

// transfer is the state of one direction of a connection. try reads or writes data once, as a
// callback of the network poller. It is created once, so that calls do not allocate memory.
type transfer struct {
	try func(fd uintptr) (done bool)

	mu   sync.Mutex // guards the fields below during a call
	data []byte
	n    int // transferred bytes
	err  error
}

// Read implements io.Reader. It waits in the network poller until data is available or the deadline expires. It
// returns io.EOF when the peer has closed its side, and 0 without an error for an empty p.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.in.run(c.raw.Read, p)
	c.waker.use()
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write implements io.Writer. It waits in the network poller until all bytes are accepted or the
// deadline expires.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.waker.use()
	return c.out.run(c.raw.Write, p)
}

// run reads into p or writes p, and returns the number of transferred bytes. wait is the Read or
// Write method of the raw connection, which calls t.try again whenever the socket is ready.
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

// read reads the available bytes from the socket fd and returns true, also at the end of the stream and for an error,
// which it stores in t.err. It returns false if there are none, so that the caller waits.
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

// write writes to the socket fd. It returns true if all bytes are written or on an error, and false
// if the socket would block, so that the caller waits.
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
