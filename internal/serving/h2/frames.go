package h2

import "golang.org/x/net/http2"

// process handles a received frame. It returns a StreamError, after which the stream must be reset, or another error,
// after which the connection must be closed. The first frame must be SETTINGS; frames of unknown types are ignored.
func (c *conn) process(f http2.Frame) error {
	if !c.settings {
		if s, ok := f.(*http2.SettingsFrame); !ok || s.IsAck() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.settings = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = true
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
			return c.onClosed(f.Header())
		}
		early := st.resetEarly()
		st.close(errReset)
		if early {
			return c.countEarlyReset(c.server.cfg.MaxStreams)
		}
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.PingFrame:
		if err := c.overhead(1); err != nil || f.IsAck() {
			return err
		}
		c.appendPing(true, f.Data)
		return c.answerSoon()
	case *http2.PriorityFrame:
		if err := c.overhead(1); err != nil {
			return err
		}
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.GoAwayFrame:
		if !c.draining {
			c.draining = true
			c.maybeClose()
		}
		return c.overhead(1)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	default:
		return c.overhead(1) // of an unknown type, which RFC 9113 requires to ignore
	}
	return nil
}

// refuse resets the stream in which the client has violated the protocol. It returns an error if the connection must
// be closed instead, because the stream was never opened or the client causes too many resets.
func (c *conn) refuse(e http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.StreamID%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	st := c.streams[e.StreamID]
	headers := c.frames.kind == http2.FrameHeaders || c.frames.kind == http2.FrameContinuation
	switch {
	case st == nil && c.resets.has(e.StreamID):
		return c.overhead(1) // it is refused already
	case st != nil, headers:
		if err := c.countEarlyReset(c.server.cfg.MaxStreams); err != nil {
			return err // a client that provokes resets is limited like one that resets streams
		}
		// Headers that are refused open their stream all the same.
		c.lastID = max(c.lastID, e.StreamID)
	case e.StreamID > c.lastID && !c.draining:
		return http2.ConnectionError(http2.ErrCodeProtocol) // an idle stream cannot be reset
	default:
		if err := c.overhead(1); err != nil {
			return err
		}
	}
	if st != nil {
		st.reset(e.Code)
	} else {
		c.appendReset(e.StreamID, e.Code)
		c.resets.add(e.StreamID)
	}
	return c.answerSoon()
}

// onSettings applies the client's SETTINGS frame and acknowledges it. It ignores acknowledgments of the server's own
// settings. It returns an error, which closes the connection, if a value is invalid or makes a window too large. The
// caller holds c.mu.
func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if err := c.overhead(1 + f.NumSettings()); err != nil || f.IsAck() {
		return err
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
			if err := c.overhead(len(c.streams)); err != nil {
				return err
			}
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

// onWindowUpdate enlarges the send window of the connection or of a stream, and wakes the handlers that wait for it.
// It returns an error if the window becomes larger than maxWindow. The caller holds c.mu.
func (c *conn) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	if err := c.overhead(1); err != nil {
		return err
	}
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.wakeAll()
		return nil
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return c.onClosed(f.Header())
	}
	if st.sendWindow += int64(f.Increment); st.sendWindow > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.wake.Broadcast()
	return nil
}

// onHeaders opens a stream for a new request, or handles the trailers of an open one. It returns a StreamError if
// MaxStreams are open or the request is malformed, and a connection error if the client opens streams faster than
// their handlers return. While the connection is draining, it ignores new streams. The caller holds c.mu.
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
	if id <= c.lastID || c.draining {
		return c.onClosed(f.Header())
	}
	c.lastID = id
	c.allowOverhead(streamOverhead)
	max := int(c.server.cfg.MaxStreams)
	if len(c.streams) >= max {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if c.running+len(c.ready)+len(c.pending) >= 4*max {
		// The client opens and resets streams faster than the handlers return.
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	st, err := newStream(c, f)
	if err != nil {
		return err
	}
	c.streams[id] = st
	c.ready = append(c.ready, st)
	return nil
}

// onData passes a part of a request body to its stream, after checking the flow control window of the connection. If
// the stream is closed or its body is complete, it discards the data, returns its size to the window, and ignores the
// frame or returns an error as RFC 9113 requires. The caller holds c.mu.
func (c *conn) onData(f *http2.DataFrame) error {
	n := int64(f.Length)
	if n > c.receiveLeft {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.receiveLeft -= n
	st := c.streams[f.StreamID]
	if st == nil || st.bodyComplete {
		c.returnWindow(n)
		if err := c.answerSoon(); err != nil {
			return err
		}
		if st == nil {
			return c.onClosed(f.Header())
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return st.onData(f)
}

// onClosed handles a frame for a stream that is closed or was never opened: it ignores the frame,
// or returns a stream or connection error as RFC 9113 requires. The caller holds c.mu.
//
// Only the identifiers of the streams that were reset last are stored. Other closed streams are
// recognized by their identifier, which is not higher than the highest that the client has opened.
// Identifiers that the client has skipped count as closed.
func (c *conn) onClosed(f http2.FrameHeader) error {
	switch {
	case f.StreamID%2 == 0, f.StreamID > c.lastID && !c.draining:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case f.StreamID > c.lastID, c.resets.has(f.StreamID):
		// The client has learned from GOAWAY that the stream is not processed; or it may have sent the frame
		// before it received RST_STREAM.
		return c.overhead(1)
	}
	switch f.Type {
	case http2.FrameData:
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	case http2.FrameHeaders:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	// The client may have sent WINDOW_UPDATE or RST_STREAM before it received the end of the response.
	return c.overhead(1)
}

// returnWindow allows the client to send n more body bytes on the connection, because they were
// read or discarded. To save frames, a WINDOW_UPDATE is appended only when enough bytes have
// accumulated. The caller holds c.mu and sends the frame.
func (c *conn) returnWindow(n int64) {
	c.windowUpdate += n
	if c.windowUpdate >= receiveWindow/4 {
		c.appendWindowUpdate(0, c.windowUpdate)
		c.receiveLeft += c.windowUpdate
		c.windowUpdate = 0
	}
}

// wakeAll wakes all handlers that wait for the request body, for space in the output buffer or for a larger send
// window, so that they check their condition again. The caller holds c.mu.
func (c *conn) wakeAll() {
	if c.waiting == 0 {
		return
	}
	for _, st := range c.streams {
		st.wake.Broadcast()
	}
}
