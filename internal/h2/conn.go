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
	// receiveWindow is how much of bodies a client may send ahead of their
	// handlers, on a connection and on each of its streams.
	receiveWindow = 1 << 20
	// usualWindow and usualFrame are what holds until settings say otherwise.
	usualWindow, usualFrame = 1<<16 - 1, 1 << 14
	// maxFrame is up to which size frames are read.
	maxFrame = 1 << 16
	// maxWindow is the largest that a window may become.
	maxWindow = 1<<31 - 1
	// headerTable is the size of the tables of header compression.
	headerTable = 4096
	// prefaceTime is for the client's first words.
	prefaceTime = 10 * time.Second
	// lingerTime is for the client to read why its connection ends.
	lingerTime = time.Second
)

var (
	errGone   = errors.New("h2: the client has gone")
	errReset  = errors.New("h2: the client has reset the stream")
	errClosed = errors.New("h2: the stream is closed")
)

// conn is a connection. What has no lock is its reader's alone.
type conn struct {
	server  *server
	tls     *tls.Conn
	corked  *corked // nil when the listener is not from Listen
	handler http.Handler
	// base is that of requests' contexts; end ends it.
	base   context.Context //nolint:containedctx // it is the connection's, and so is the struct
	end    context.CancelFunc
	state  tls.ConnectionState
	remote string

	in     *bufio.Reader
	framer *http2.Framer
	// ready are streams whose handlers start before the reader waits again:
	// most often the body comes right behind the headers.
	ready    []*stream
	settings bool // the client's first have come

	mu sync.Mutex // guards what follows, and what streams say so of

	streams map[uint32]*stream
	lastID  uint32 // the highest that the client has opened
	// running is how many handlers have not returned, of streams that are
	// gone too; pending wait for room among them.
	running int
	pending []*stream
	// idleSince is when the last stream ended.
	idleSince time.Time
	// leaving: no new streams are taken. Gone: nothing is written any more.
	leaving, gone bool
	linger        *time.Timer

	// heard: something was read since the keeper looked last; asked: it has
	// sent a ping since.
	heard, asked bool
	keeper       *time.Timer

	// wasted is how many streams the client has opened for nothing, less one
	// for every wasteEvery since; wastedAt is when that was counted.
	wasted   int
	wastedAt time.Time

	// What may be sent and received on the connection.
	sendWindow    int64
	receiveLeft   int64
	returned      int64 // of what was received, not told to the client yet
	initialWindow int64 // of streams, for sending
	frame         int   // the largest that the client takes

	output
}

func newConn(s *server, tc *tls.Conn, handler http.Handler, base context.Context) *conn {
	c := &conn{
		server: s, tls: tc, handler: handler, state: tc.ConnectionState(), remote: tc.RemoteAddr().String(),
		streams: map[uint32]*stream{}, idleSince: time.Now(),
		sendWindow: usualWindow, receiveLeft: receiveWindow, initialWindow: usualWindow, frame: usualFrame,
	}
	c.corked, _ = tc.NetConn().(*corked)
	c.base, c.end = context.WithCancel(base)
	c.in = bufio.NewReader(tc)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	c.framer.MaxHeaderListSize = c.maxHeaders()
	c.output.init()
	return c
}

func (c *conn) maxHeaders() uint32 {
	n := c.server.http.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	// As many bytes as HTTP/1 would take, with the overhead of HTTP/2's count
	// for some fields.
	return uint32(min(n+10*32, 1<<31-1))
}

// serve reads until the connection ends.
func (c *conn) serve() {
	defer c.close()
	_ = c.tls.SetDeadline(time.Time{}) // what net/http set for the handshake
	if err := c.preface(); err != nil {
		c.debug("no HTTP/2 preface", err)
		return
	}
	c.mu.Lock()
	c.appendSettings()
	c.sendSoon()
	c.keeper = time.AfterFunc(c.keepEvery(), c.keep)
	c.mu.Unlock()
	if c.server.isLeaving() {
		c.leave()
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
			c.debug("stream error", err)
			if err = c.refuse(stream); err == nil {
				continue
			}
		}
		c.start()
		if errors.Is(err, http2.ErrFrameTooLarge) {
			err = http2.ConnectionError(http2.ErrCodeFrameSize)
		}
		if broken, ok := errors.AsType[http2.ConnectionError](err); ok {
			c.debug("connection error", err)
			c.expel(http2.ErrCode(broken))
		}
		return
	}
}

func (c *conn) debug(what string, err error) {
	c.server.cfg.Log.Debug("HTTP/2: "+what, "client", c.remote, "error", err)
}

// preface reads the words that a client begins with.
func (c *conn) preface() error {
	if err := c.tls.SetReadDeadline(time.Now().Add(prefaceTime)); err != nil {
		return err
	}
	var words [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.in, words[:]); err != nil {
		return err
	}
	if string(words[:]) != http2.ClientPreface {
		return errors.New("something else")
	}
	return c.tls.SetReadDeadline(time.Time{})
}

// wholeFrame tells whether the next frame can be read without waiting.
func (c *conn) wholeFrame() bool {
	n := c.in.Buffered()
	if n < frameHeader {
		return false
	}
	head, err := c.in.Peek(3)
	return err == nil && n >= frameHeader+(int(head[0])<<16|int(head[1])<<8|int(head[2]))
}

// start starts the handlers that are due.
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

// handlerReturned is told when a handler has returned, and starts the next. The lock
// is held.
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

// leave takes no more streams, and ends the connection with the last.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving || c.gone || c.keeper == nil {
		return // before its first words, serve sees to it
	}
	c.leaving = true
	c.appendGoAway(c.lastID, http2.ErrCodeNo)
	c.sendSoon()
}

// maybeEnd ends a connection that is leaving and has nothing more to do. The
// lock is held.
func (c *conn) maybeEnd() {
	if c.leaving && len(c.streams) == 0 && !c.writing && len(c.out) == 0 && c.linger == nil && !c.gone {
		// Closing with something unread might take the last words away from
		// the client.
		c.linger = time.AfterFunc(lingerTime, func() { _ = c.tls.NetConn().Close() })
	}
}

// expel ends a connection whose client does wrong.
func (c *conn) expel(code http2.ErrCode) {
	c.mu.Lock()
	c.leaving = true
	c.appendGoAway(c.lastID, code)
	c.sendSoon()
	c.mu.Unlock()
	if c.tls.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, c.tls) // until it goes, or the time is over
	}
}

// close ends everything once the reader has.
func (c *conn) close() {
	c.mu.Lock()
	c.fail()
	if c.keeper != nil {
		c.keeper.Stop()
	}
	if c.linger != nil {
		c.linger.Stop()
	}
	c.mu.Unlock()
	_ = c.tls.NetConn().Close()
}

// fail ends all streams. The lock is held.
func (c *conn) fail() {
	if c.gone {
		return
	}
	c.gone = true
	c.end()
	for _, st := range c.streams {
		st.close(errGone)
	}
	c.pending = nil
	c.discard()
}

func (c *conn) keepEvery() time.Duration {
	every := time.Minute
	for _, d := range []time.Duration{c.server.cfg.PingAfter, c.server.http.IdleTimeout} {
		if d > 0 {
			every = min(every, d)
		}
	}
	return every
}

// keep ends connections that are idle for too long, or dead.
func (c *conn) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	next := c.keepEvery()
	if idle := c.server.http.IdleTimeout; idle > 0 && len(c.streams) == 0 && !c.leaving {
		left := idle - time.Since(c.idleSince)
		if left <= 0 {
			c.leaving = true
			c.appendGoAway(c.lastID, http2.ErrCodeNo)
			c.sendSoon()
			return
		}
		next = min(next, left)
	}
	switch {
	case c.heard || c.server.cfg.PingAfter == 0:
		c.heard, c.asked = false, false
	case c.asked:
		_ = c.tls.NetConn().Close() // the reader sees it
		return
	default:
		c.asked = true
		c.appendPing(false, [8]byte{})
		c.sendSoon()
		next = c.server.cfg.PingTimeout
	}
	c.keeper.Reset(next)
}
