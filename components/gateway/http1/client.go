// Package http1 is a client for HTTP/1.1 that sends requests to one address, for proxies.
//
// The transport of net/http passes each request to a goroutine that writes and each response from a goroutine that reads.
// This client writes and reads in the goroutine of the caller, and starts another one only for a request with a body. A proxy
// uses about half of the CPU time for a request with it.
//
// A connection that is idle has no reader. So the client checks whether the server has closed a connection before it uses
// it again.
package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config configures a Client. All fields except TLS are required.
type Config struct {
	// Address is the HOST:PORT that the client connects to.
	Address string
	// Dial connects to the address over TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// DialTimeout limits the time to connect, including the TLS handshake.
	DialTimeout time.Duration
	// TLS is the configuration of TLS connections. Nil selects plain TCP.
	TLS *tls.Config
	// IdleTimeout is the time after which an idle connection is closed, and MaxIdle the number of idle connections.
	IdleTimeout time.Duration
	MaxIdle     int
}

// Client sends requests to one address. It is an http.RoundTripper. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu   sync.Mutex // guards the fields below
	idle []*conn    // from the least to the most recently used
	// timer runs expire. It is nil if no connection is idle.
	timer  *time.Timer
	closed bool
}

// New returns a client without connections.
func New(cfg Config) *Client { return &Client{cfg: cfg} }

// errNotAnswered is the error of a connection that ends before the first byte of the response. If the connection was idle before,
// the server has probably closed it without having read the request.
var errNotAnswered = errors.New("the server closed the connection without a response")

// RoundTrip implements http.RoundTripper. The URL of the request determines only the path and query: the client sends it to its
// own address. Trailers of the request are not sent. Unlike the transport of net/http it does not close the request's body.
//
// If a connection that was used before ends without a response, RoundTrip sends the request again on another connection,
// provided that the request has no body and a method that is safe to repeat. A connection error of package net has Op "dial"
// if nothing was sent.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	uri := r.URL.RequestURI()
	if err := validate(r, uri); err != nil {
		return nil, err
	}
	for {
		k := c.take()
		reused := k != nil
		if !reused {
			var err error
			if k, err = c.dial(r.Context()); err != nil {
				return nil, err
			}
		}
		res, err := k.roundTrip(r, uri)
		if err == nil || !reused || !errors.Is(err, errNotAnswered) || !repeatable(r) {
			return res, err
		}
	}
}

// repeatable reports whether a request can be sent twice.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return !hasBody(r) && r.Context().Err() == nil
	}
	return false
}

// dial returns a new connection.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	tcp, err := c.cfg.Dial(ctx, c.cfg.Address)
	if err != nil {
		return nil, err
	}
	k := &conn{client: c, Conn: tcp}
	if s, ok := tcp.(syscall.Conn); ok {
		k.socket, _ = s.SyscallConn() // nil if it fails
	}
	if c.cfg.TLS != nil {
		secure := tls.Client(tcp, c.cfg.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = tcp.Close() // the handshake has failed already
			return nil, fmt.Errorf("connecting to %s with TLS: %w", c.cfg.Address, err)
		}
		k.Conn = secure
	}
	k.peek = k.look
	k.reader, k.writer = bufio.NewReaderSize(k, bufferSize), bufio.NewWriterSize(k.Conn, bufferSize)
	return k, nil
}

// take returns the idle connection that was used last and is still open. It returns nil if there is none.
func (c *Client) take() *conn {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		k := c.idle[n-1]
		c.idle[n-1], c.idle = nil, c.idle[:n-1]
		c.mu.Unlock()
		if k.isQuiet() {
			return k
		}
		_ = k.Close() // the server has closed it
	}
}

// put adds a connection without a request to the idle ones. It closes the connection if there are too many, or if the client
// is closed.
func (c *Client) put(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= c.cfg.MaxIdle {
		_ = k.Close() // nothing can be lost
		return
	}
	k.since = time.Now()
	c.idle = append(c.idle, k)
	if c.timer == nil {
		c.timer = time.AfterFunc(c.cfg.IdleTimeout, c.expire)
	}
}

// expire closes the connections that have been idle for too long. It runs again when the next one has been.
func (c *Client) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	n, now := 0, time.Now()
	for ; n < len(c.idle) && now.Sub(c.idle[n].since) >= c.cfg.IdleTimeout; n++ {
		_ = c.idle[n].Close() // nothing can be lost
	}
	c.idle = append([]*conn(nil), c.idle[n:]...)
	if len(c.idle) > 0 {
		c.timer = time.AfterFunc(c.cfg.IdleTimeout-now.Sub(c.idle[0].since), c.expire)
	}
}

// CloseIdleConnections closes the idle connections. Those with a request are closed when the response is complete. Later requests
// use a connection each.
func (c *Client) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, k := range c.idle {
		_ = k.Close() // nothing can be lost
	}
	c.idle = nil
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// isQuiet reports whether an idle connection is open and nothing was received. A server sends nothing on an idle connection,
// except for the end of the connection.
func (k *conn) isQuiet() bool {
	if k.socket == nil {
		return true
	}
	k.quiet = false
	return k.socket.Read(k.peek) == nil && k.quiet
}

// look sets k.quiet to whether the socket fd has nothing to read. It is called by the network poller.
func (k *conn) look(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	k.quiet = errors.Is(err, unix.EAGAIN)
	return true
}
