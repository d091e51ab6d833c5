package h2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	// soon is within which time of its opening a reset stream that was not
	// answered was opened for nothing.
	soon = time.Second
	// mostWasted is how many such streams a client may have at once, or as many
	// as it may have open; for each wasteEvery it may have one more.
	mostWasted = 250
	wasteEvery = 40 * time.Millisecond
)

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
