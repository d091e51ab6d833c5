package h2

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"hyperkube/internal/rawconn"
)

// Listen returns l, whose connections collect what TLS writes in pieces of
// 16 KiB while this package writes a buffer. They are of package rawconn.
func Listen(l net.Listener) net.Listener { return corking{new(rawconn.Pace).Listen(l)} }

type corking struct{ net.Listener }

// Accept as net.Listener.
func (l corking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corked{Conn: c}, nil
}

// collected are the buffers of connections that are writing.
var collected = sync.Pool{New: func() any { return new([]byte) }}

// maxCollected is up to which size such a buffer is kept.
const maxCollected = 512 << 10

// corked is a connection that can hold back what is written.
type corked struct {
	net.Conn

	mu sync.Mutex
	// held is what has been written since hold; nil when nothing is held
	// back.
	held *[]byte
}

// Write as net.Conn.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// hold holds back what is written from now on.
func (c *corked) hold() {
	c.mu.Lock()
	c.held = collected.Get().(*[]byte)
	c.mu.Unlock()
}

// release writes what was held back. For as long as something of it is taken
// within every timeout, unless that is zero, it goes on.
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
