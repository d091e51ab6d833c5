package h2

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"hyperkube/internal/serving/rawconn"
)

// Listen returns a listener for a server configured by Configure; l must accept plain TCP connections, which the
// server encrypts. TLS writes records of at most 16 KiB; the connections of the listener collect the records of one
// large write and send them with one system call. They are connections of package rawconn.
func Listen(l net.Listener) net.Listener { return corking{new(rawconn.MonitorWaker).Listen(l)} }

// corking is the listener that Listen returns.
type corking struct{ net.Listener }

// Accept implements net.Listener. The connection is a *corked, which collects the bytes of several writes between
// calls of hold and release.
func (l corking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corked{Conn: c}, nil
}

// collected is the pool of buffers in which corked connections collect writes.
var collected = sync.Pool{New: func() any { return new([]byte) }}

// maxCollected is the maximum capacity, in bytes, of a buffer that is returned to the pool.
const maxCollected = 512 << 10

// corked is a TCP connection that can collect the bytes of several writes and send them together.
type corked struct {
	net.Conn

	mu sync.Mutex
	// held contains the bytes written since hold. It is nil when writes are not buffered.
	held *[]byte
}

// Write implements net.Conn. Between hold and release it only collects p and returns no error.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// hold starts to collect the bytes that are written, so that release sends them with one system call.
func (c *corked) hold() {
	c.mu.Lock()
	c.held = collected.Get().(*[]byte)
	c.mu.Unlock()
}

// release sends the bytes collected since hold, which must have been called, and ends the collection. The caller must
// set a write deadline before, because release blocks without one. If the deadline passes and the peer has accepted
// bytes in the meantime, release extends it by timeout. Otherwise, or if timeout is zero, it returns the error.
func (c *corked) release(timeout time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held
	c.held = nil
	defer func() {
		if cap(*held) <= maxCollected {
			*held = (*held)[:0]
			collected.Put(held)
		}
	}()
	for rest := *held; len(rest) > 0; {
		n, err := c.Conn.Write(rest)
		rest = rest[n:]
		if err == nil {
			continue
		}
		if n == 0 || timeout == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
	}
	return nil
}
