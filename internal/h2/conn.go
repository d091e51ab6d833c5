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
		var stream http2.StreamError
		if errors.As(err, &stream) {
			c.debug("stream error", err)
			if err = c.refuse(stream); err == nil {
				continue
			}
		}
		c.start()
		if errors.Is(err, http2.ErrFrameTooLarge) {
			err = http2.ConnectionError(http2.ErrCodeFrameSize)
		}
		var broken http2.ConnectionError
		if errors.As(err, &broken) {
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
	if c.leaving || c.gone {
		return
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

// process looks at a frame.
func (c *conn) process(f http2.Frame) error {
	if !c.settings {
		if s, ok := f.(*http2.SettingsFrame); !ok || s.IsAck() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.settings = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = true
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.WindowUpdateFrame:
		return c.onWindowUpdate(f)
	case *http2.RSTStreamFrame:
		st := c.streams[f.StreamID]
		if st == nil {
			return c.noStream(f.StreamID)
		}
		early := st.early()
		st.close(errReset)
		if early {
			return c.waste()
		}
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			c.appendPing(true, f.Data)
			return c.answerSoon()
		}
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.GoAwayFrame:
		if !c.leaving {
			c.leaving = true
			c.maybeEnd()
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// refuse resets a stream for what came on it; an error when that is one of the
// connection's.
func (c *conn) refuse(e http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.StreamID%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if err := c.waste(); err != nil {
		return err // making us reset is no better than resetting
	}
	// Headers that are refused open their stream all the same.
	c.lastID = max(c.lastID, e.StreamID)
	if st := c.streams[e.StreamID]; st != nil {
		st.reset(e.Code)
	} else {
		c.appendReset(e.StreamID, e.Code)
	}
	return c.answerSoon()
}

const (
	// soon is within which time of its opening a reset stream that was not
	// answered was opened for nothing.
	soon = time.Second
	// mostWasted is how many such streams a client may have at once, or as many
	// as it may have open; for each wasteEvery it may have one more.
	mostWasted = 250
	wasteEvery = 40 * time.Millisecond
)

// early tells whether a stream that ends now was opened for nothing. The lock is
// held.
func (st *stream) early() bool { return !st.answer.begun && time.Since(st.opened) < soon }

// waste counts a stream that was opened for nothing: the work that it made goes on
// for a while, and the client may open the next at once, so that limits of what is
// open do not hold it. An error when it does nothing else. The lock is held.
func (c *conn) waste() error {
	if past := time.Since(c.wastedAt) / wasteEvery; past > 0 {
		c.wasted = max(0, c.wasted-int(min(past, 1<<20)))
		c.wastedAt = time.Now()
	}
	if c.wasted++; c.wasted > max(mostWasted, int(c.server.cfg.MaxStreams)) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > 100 || f.HasDuplicates() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSize(min(s.Val, headerTable))
		case http2.SettingMaxFrameSize:
			c.frame = int(s.Val)
		case http2.SettingInitialWindowSize:
			growth := int64(s.Val) - c.initialWindow
			c.initialWindow = int64(s.Val)
			for _, st := range c.streams {
				if st.sendWindow += growth; st.sendWindow > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
			}
			c.wakeAll()
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.appendFrame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	return c.answerSoon()
}

func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.wakeAll()
		return nil
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return c.noStream(f.StreamID)
	}
	if st.sendWindow += int64(f.Increment); st.sendWindow > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.wake.Broadcast()
	return nil
}

// onHeaders begins a stream, or ends the body of one by trailers.
func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if st := c.streams[id]; st != nil {
		return st.onTrailer(f)
	}
	if id <= c.lastID {
		// Of a stream that has ended: an answer may cross a trailer, else
		// the client errs.
		if f.StreamEnded() {
			return nil
		}
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if c.leaving {
		return nil // the client knows that nobody looked at it
	}
	c.lastID = id
	max := int(c.server.cfg.MaxStreams)
	if len(c.streams) >= max {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if c.running+len(c.ready)+len(c.pending) >= 4*max {
		// It opens and resets streams faster than handlers notice.
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	st, err := c.newStream(f)
	if err != nil {
		return err
	}
	c.streams[id] = st
	c.ready = append(c.ready, st)
	return nil
}

func (c *conn) onData(f *http2.DataFrame) error {
	n := int64(f.Length)
	if n > c.receiveLeft {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.receiveLeft -= n
	st := c.streams[f.StreamID]
	if st == nil || st.ended {
		c.giveBack(n)
		if err := c.answerSoon(); err != nil {
			return err
		}
		if st == nil {
			return c.noStream(f.StreamID)
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return st.onData(f)
}

// noStream is what a frame is on a stream that there is not: nothing when it
// has just ended, or is one of those that are not taken any more.
func (c *conn) noStream(id uint32) error {
	if id%2 == 1 && (id <= c.lastID || c.leaving) {
		return nil
	}
	return http2.ConnectionError(http2.ErrCodeProtocol)
}

// giveBack lets the client send n bytes more on the connection, which it is told
// now and then. The lock is held, and the caller sends.
func (c *conn) giveBack(n int64) {
	c.returned += n
	if c.returned >= receiveWindow/4 {
		c.appendWindowUpdate(0, c.returned)
		c.receiveLeft += c.returned
		c.returned = 0
	}
}

// wakeAll wakes whoever waits for room. The lock is held.
func (c *conn) wakeAll() {
	if c.waiting == 0 {
		return
	}
	for _, st := range c.streams {
		st.wake.Broadcast()
	}
}
