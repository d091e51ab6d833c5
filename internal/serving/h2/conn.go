package h2

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// receiveWindow is the number of body bytes that a client may send before the handlers read
	// them, per connection and per stream.
	receiveWindow = 1 << 20
	// defaultWindow and defaultFrameSize are the defaults before settings are received.
	defaultWindow, defaultFrameSize = 1<<16 - 1, 1 << 14
	// maxFrame is the maximum size in bytes of a frame that a client may send, as the server's SETTINGS announce.
	maxFrame = 1 << 16
	// maxWindow is the maximum size of a flow control window.
	maxWindow = 1<<31 - 1
	// headerTable is the size of the header compression tables.
	headerTable = 4096
	// prefaceTimeout is the time that the client has to send its connection preface.
	prefaceTimeout = 10 * time.Second
	// closeDelay is the time between the last frame and closing the connection, in which the client
	// can read that frame.
	closeDelay = time.Second
)

var (
	errConnClosed = errors.New("h2: connection closed by client")
	errReset      = errors.New("h2: stream reset by client")
	errClosed     = errors.New("h2: stream closed")
)

// conn is an HTTP/2 connection of a client. Fields without a lock are used only by the goroutine
// that reads from the connection.
type conn struct {
	server *server
	transport
	handler http.Handler
	// base is the parent context of requests; cancel cancels it.
	base   context.Context //nolint:containedctx // it is the connection's, and so is the struct
	cancel context.CancelFunc

	input
	// ready contains new streams whose handlers are started before the reader blocks again, because
	// the body usually follows the headers immediately.
	ready    []*stream
	settings bool // the first settings frame of the client was received

	mu sync.Mutex // guards the fields below and those of streams whose comments name it

	streams map[uint32]*stream
	lastID  uint32 // highest stream ID opened by the client
	// running is the number of handlers that have not returned, including those of closed streams.
	// pending streams wait until a handler returns.
	running int
	pending []*stream
	// idleSince is the time at which the last stream was closed.
	idleSince time.Time

	closing
	keepalive
	limits
	// resets are the streams that this side has reset last.
	resets recentIDs
	windows
	output
}

// input is the receiving side of a connection. Only the goroutine that reads from the connection
// uses it.
type input struct {
	in     *bufio.Reader
	frames frameReader
	framer *http2.Framer
}

// wholeFrame reports whether the next frame is completely in the read buffer, so that reading it
// does not block.
func (i *input) wholeFrame() bool {
	n := i.in.Buffered()
	if n < frameHeader {
		return false
	}
	head, err := i.in.Peek(3)
	return err == nil && n >= frameHeader+(int(head[0])<<16|int(head[1])<<8|int(head[2]))
}

// keepalive is the state of checkKeepalive, which finds out whether the client is still reachable.
// The connection's lock guards it.
type keepalive struct {
	// received is set when something was received since the last run of checkKeepalive. pingSent is
	// set when checkKeepalive has sent a ping since.
	received, pingSent bool
	keepaliveTimer     *time.Timer
}

// windows are the flow control windows of a connection. The connection's lock guards them.
type windows struct {
	sendWindow    int64
	receiveLeft   int64
	windowUpdate  int64 // received bytes not yet reported in a WINDOW_UPDATE
	initialWindow int64 // initial send window of streams
	frame         int   // maximum frame size that the client accepts
}

// transport is the TLS connection below HTTP/2. Its fields do not change.
type transport struct {
	tls    *tls.Conn
	corked *corked // nil if the listener was not created by Listen
	state  tls.ConnectionState
	remote string
}

// closing is the state of a connection that is being closed. The connection's lock guards it.
type closing struct {
	// draining is set when no new streams are accepted, failed when nothing more is written.
	draining, failed bool
	closeTimer       *time.Timer
}

// newConn returns the state of a connection of s whose TLS handshake is complete. serve serves it with handler; base
// is the parent of the contexts of its requests.
func newConn(s *server, tc *tls.Conn, handler http.Handler, base context.Context) *conn {
	c := &conn{
		server: s, handler: handler, transport: transport{tls: tc, state: tc.ConnectionState(), remote: tc.RemoteAddr().String()},
		streams: map[uint32]*stream{}, idleSince: time.Now(),
		windows: windows{sendWindow: defaultWindow, receiveLeft: receiveWindow, initialWindow: defaultWindow, frame: defaultFrameSize},
	}
	c.corked, _ = tc.NetConn().(*corked)
	c.base, c.cancel = context.WithCancel(base)
	c.in = bufio.NewReader(tc)
	c.frames.in = c.in
	c.framer = http2.NewFramer(nil, &c.frames)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	c.framer.MaxHeaderListSize = c.server.maxHeaders()
	c.output.init()
	return c
}

// serve reads and processes frames until the connection is closed or broken, and then releases its resources. After a
// protocol error of the client it rejects the request or, if the error concerns the connection, sends GOAWAY and
// closes it.
func (c *conn) serve() {
	defer c.close()
	_ = c.tls.SetDeadline(time.Time{}) // clears the deadline that net/http sets for the handshake
	if err := c.preface(); err != nil {
		c.server.cfg.Log.Debug("HTTP/2 connection closed because the client sent no valid preface, it has made no request", "client", c.remote, "err", err)
		return
	}
	c.mu.Lock()
	c.appendSettings()
	c.sendSoon()
	c.keepaliveTimer = time.AfterFunc(c.server.keepaliveInterval(), c.checkKeepalive)
	c.mu.Unlock()
	if c.server.isDraining() {
		c.drain()
	}
	for {
		if !c.wholeFrame() {
			c.start()
		}
		f, err := c.framer.ReadFrame()
		if err == nil {
			err = c.process(f)
		}
		if err == nil {
			continue
		}
		if stream, ok := errors.AsType[http2.StreamError](err); ok {
			c.server.cfg.Log.Debug("HTTP/2 request of client rejected with a stream error, other requests of the connection continue", "client", c.remote, "err", err)
			if err = c.refuse(stream); err == nil {
				continue
			}
		}
		c.start()
		if errors.Is(err, http2.ErrFrameTooLarge) {
			err = http2.ConnectionError(http2.ErrCodeFrameSize)
		}
		if broken, ok := errors.AsType[http2.ConnectionError](err); ok {
			c.server.cfg.Log.Debug("HTTP/2 connection of client closed with a connection error, its requests are aborted", "client", c.remote, "err", err)
			c.closeWithError(http2.ErrCode(broken))
		}
		return
	}
}

// preface reads the bytes with which every HTTP/2 client starts. It returns an error if they are different or do not
// arrive within prefaceTimeout.
func (c *conn) preface() error {
	if err := c.tls.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return err
	}
	var words [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.in, words[:]); err != nil {
		return err
	}
	if string(words[:]) != http2.ClientPreface {
		return errors.New("unexpected preface")
	}
	return c.tls.SetReadDeadline(time.Time{})
}

// start starts the handlers of new streams, or queues the streams while MaxStreams handlers are running. It skips
// streams that the client has reset meanwhile.
func (c *conn) start() {
	if len(c.ready) == 0 {
		return
	}
	c.mu.Lock()
	for i, st := range c.ready {
		c.ready[i] = nil
		if st.closed {
			continue
		}
		if c.running < int(c.server.cfg.MaxStreams) {
			c.running++
			c.server.workers.run(st)
		} else {
			c.pending = append(c.pending, st)
		}
	}
	c.ready = c.ready[:0]
	c.mu.Unlock()
}

// handlerReturned records that a handler has returned, and starts the handler of the next pending stream that is not
// closed, if there is one. The caller holds c.mu.
func (c *conn) handlerReturned() {
	c.running--
	for len(c.pending) > 0 {
		st := c.pending[0]
		c.pending[0] = nil
		c.pending = c.pending[1:]
		if !st.closed {
			c.running++
			c.server.workers.run(st)
			return
		}
	}
	c.pending = nil
}

// drain sends GOAWAY, so that the client opens no new streams. The connection is closed after the last stream. The
// server calls it at shutdown. It does nothing if the connection is already draining, broken or not served yet.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || c.failed || c.keepaliveTimer == nil {
		return // not served yet: serve checks server.draining itself
	}
	c.draining = true
	c.appendGoAway(c.lastID, http2.ErrCodeNo)
	c.sendSoon()
}

// maybeClose schedules the close of a connection that is draining, has no streams and has written all frames. It is
// closed after closeDelay. The caller holds c.mu.
func (c *conn) maybeClose() {
	if c.draining && len(c.streams) == 0 && !c.writing && len(c.out) == 0 && c.closeTimer == nil && !c.failed {
		// Closing a connection with unread data can discard the last frames before the client has
		// read them, so delay the close.
		c.closeTimer = time.AfterFunc(closeDelay, func() { _ = c.tls.NetConn().Close() })
	}
}

// closeWithError sends GOAWAY with the code of the client's protocol error. It then waits up to closeDelay for the
// client to close the connection, and discards what it receives. The caller closes it afterwards.
func (c *conn) closeWithError(code http2.ErrCode) {
	c.mu.Lock()
	c.draining = true
	c.appendGoAway(c.lastID, code)
	c.sendSoon()
	c.mu.Unlock()
	if c.tls.SetReadDeadline(time.Now().Add(closeDelay)) == nil {
		_, _ = io.Copy(io.Discard, c.tls) // until the client closes the connection or the deadline expires
	}
}

// close closes the connection and all its streams when reading has stopped.
func (c *conn) close() {
	c.mu.Lock()
	c.fail()
	if c.keepaliveTimer != nil {
		c.keepaliveTimer.Stop()
	}
	if c.closeTimer != nil {
		c.closeTimer.Stop()
	}
	c.mu.Unlock()
	_ = c.tls.NetConn().Close()
}

// fail closes all streams, whose handlers get errConnClosed, and cancels their contexts. Nothing is written to the
// connection afterwards. Further calls do nothing. The caller holds c.mu.
func (c *conn) fail() {
	if c.failed {
		return
	}
	c.failed = true
	c.cancel()
	for _, st := range c.streams {
		st.close(errConnClosed)
	}
	c.pending = nil
	c.discard()
}

// checkKeepalive runs on a timer. It makes a connection close that has had no streams for the server's IdleTimeout,
// sends a ping if nothing was received since its last run, and closes the connection if nothing was received for
// PingTimeout after a ping. If PingAfter or IdleTimeout is zero, it omits that part.
func (c *conn) checkKeepalive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return
	}
	next := c.server.keepaliveInterval()
	if idle := c.server.http.IdleTimeout; idle > 0 && len(c.streams) == 0 && !c.draining {
		left := idle - time.Since(c.idleSince)
		if left <= 0 {
			c.draining = true
			c.appendGoAway(c.lastID, http2.ErrCodeNo)
			c.sendSoon()
			return
		}
		next = min(next, left)
	}
	switch {
	case c.received || c.server.cfg.PingAfter == 0:
		c.received, c.pingSent = false, false
	case c.pingSent:
		_ = c.tls.NetConn().Close() // makes the reader fail
		return
	default:
		c.pingSent = true
		c.appendPing(false, [8]byte{})
		c.sendSoon()
		next = c.server.cfg.PingTimeout
	}
	c.keepaliveTimer.Reset(next)
}
