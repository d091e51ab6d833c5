package h2

import (
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxResponseBuffer is the number of response bytes that are collected until the handler returns or
// flushes. A response that fits gets a Content-Length.
const maxResponseBuffer = 16 << 10

// response is the http.ResponseWriter of a handler. It is used by the handler's goroutine only,
// except where the connection's lock is held.
type response struct {
	stream *stream
	header http.Header
	status int
	// declared is the value of Content-Length, negative if there is none. written is the number of
	// bytes that the handler has written.
	declared, written int64
	head              bool // response to HEAD, which has no body
	// buffered contains bytes that were written but not framed yet, or is nil.
	buffered *[]byte
	// headerFramed is set when the header was framed, ended when the complete response was.
	headerFramed, ended bool
	done                bool // the handler has returned
	// announced are the names of the declared trailers.
	announced []string
}

// Header implements http.ResponseWriter. After the response has begun, changes only have an effect
// on trailers.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header, 8)
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter. An informational (1xx) status is sent immediately, any other with the
// first part of the body. Calls after the first other status, or after the handler has returned, are ignored. An
// invalid Content-Length is removed. It panics if status is not between 100 and 999.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || w.done {
		return
	}
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status)) // like net/http; closes only the stream
	}
	if status < 200 {
		c := w.stream.c
		c.mu.Lock()
		defer c.mu.Unlock()
		if !w.stream.closed {
			w.informational(status, w.header)
			c.send()
		}
		return
	}
	w.status = status
	if v := w.Header()["Content-Length"]; len(v) > 0 {
		if n, err := strconv.ParseInt(v[0], 10, 64); err == nil && n >= 0 {
			w.declared = n
		} else {
			delete(w.header, "Content-Length")
		}
	}
	for _, v := range w.header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) && !slices.Contains(w.announced, name) {
				w.announced = append(w.announced, name)
			}
		}
	}
}

// bodyAllowed reports whether a response with the status may have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements http.ResponseWriter. It collects the bytes until the response buffer is full or Flush is called,
// unless the Content-Length is larger than that buffer. Afterwards it encodes them as DATA frames, and blocks while
// the client's flow control window or the output buffer is full. It discards the bytes for a HEAD request. It returns
// an error if the status allows no body, p exceeds the Content-Length, the stream is closed, or the write deadline
// expires.
func (w *response) Write(p []byte) (int, error) {
	if w.done {
		return 0, errClosed
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.declared >= 0 && w.written+int64(len(p)) > w.declared {
		return 0, http.ErrContentLength
	}
	w.written += int64(len(p))
	if w.head {
		return len(p), nil
	}
	if !w.headerFramed && w.declared <= maxResponseBuffer && w.buffer(p) {
		return len(p), nil
	}
	c := w.stream.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := w.frame(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// responseBuffers is the pool of the buffers in which responses collect body bytes before they become frames.
var responseBuffers = sync.Pool{New: func() any { return new([]byte) }}

// buffer appends p to the response buffer. It returns false, and appends nothing, if p does not
// fit.
func (w *response) buffer(p []byte) bool {
	if w.buffered == nil {
		w.buffered = responseBuffers.Get().(*[]byte)
	}
	if len(*w.buffered)+len(p) > maxResponseBuffer {
		return false
	}
	*w.buffered = append(*w.buffered, p...)
	return true
}

// WriteString implements io.StringWriter. It is the same as Write.
func (w *response) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush implements http.Flusher: it sends what the handler has written so far. It ignores errors, which the next
// Write returns.
func (w *response) Flush() { _ = w.FlushError() } // the next write returns the error

// FlushError sends what the handler has written so far, or leaves this to the goroutine that is already writing to
// the connection. http.ResponseController calls it. It returns an error if the handler has returned, the stream is
// closed, or the write deadline expires.
func (w *response) FlushError() error {
	if w.done {
		return errClosed
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	c := w.stream.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := w.frame(nil, false); err != nil {
		return err
	}
	c.yield()
	c.send()
	return nil
}

// yield lets other goroutines that are about to write to the connection append their frames first: the event that
// wakes one watch often wakes many. It does nothing if a goroutine is writing or there is only one stream. The caller
// holds c.mu, which is released in between.
func (c *conn) yield() {
	if !c.writing && len(c.streams) > 1 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// SetReadDeadline sets the deadline for reading the request body, for http.ResponseController. The zero time means no
// deadline. It always returns nil.
func (w *response) SetReadDeadline(t time.Time) error {
	w.stream.setDeadline(reading, t)
	return nil
}

// SetWriteDeadline sets the deadline for writing the response, for http.ResponseController. The zero time means no
// deadline. It always returns nil.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.stream.setDeadline(writing, t)
	return nil
}

// EnableFullDuplex does nothing, because a handler can always read and write at the same time in
// HTTP/2. http.ResponseController calls it.
func (w *response) EnableFullDuplex() error { return nil }

// complete appends the frames of the response that are missing when the handler has returned: header, collected body
// and trailers. It adds a Content-Length if the complete body is known. It resets the stream if the handler has
// written less than its Content-Length. The caller holds c.mu and sends the frames.
func (w *response) complete() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.done = true
	short := !w.head && bodyAllowed(w.status) && w.declared > w.written
	if !w.headerFramed && !w.head && w.declared < 0 && bodyAllowed(w.status) {
		// The complete body is known.
		w.declared = w.written
		w.Header()["Content-Length"] = []string{strconv.FormatInt(w.written, 10)}
	}
	if err := w.frame(nil, !short); err != nil {
		return
	}
	if short {
		w.stream.reset(http2.ErrCodeInternal) // otherwise the client would wait for the missing bytes
	}
}

// frame appends frames for the header, if that has not happened yet, the collected bytes and p to
// the output buffer. end is set for the last call; it also appends the trailers. The caller holds
// c.mu, which is released while frame waits for flow control window or buffer space. It returns an
// error if the stream is closed or a deadline expires.
func (w *response) frame(p []byte, end bool) error {
	st := w.stream
	if st.closed {
		return st.err
	}
	if w.ended {
		return errClosed
	}
	var before []byte
	if w.buffered != nil {
		before = *w.buffered
		defer func(b *[]byte) {
			*b = (*b)[:0]
			responseBuffers.Put(b)
		}(w.buffered)
		w.buffered = nil
	}
	trailing := end && w.hasTrailers()
	if !w.headerFramed {
		w.headerFramed = true
		empty := end && len(before)+len(p) == 0 && !trailing
		w.frameHeaders(before, p, empty)
		if empty {
			w.ended = true
			return nil
		}
	}
	last := end && !trailing
	if len(before) > 0 {
		if err := st.data(before, last && len(p) == 0); err != nil {
			return err
		}
	}
	if len(p) > 0 || last && len(before) == 0 {
		if err := st.data(p, last); err != nil {
			return err
		}
	}
	if end {
		if trailing {
			w.frameTrailers()
		}
		w.ended = true
	}
	return nil
}

// data appends p as DATA frames to the output buffer, and waits for flow control window and buffer space as needed.
// end is set if p is the end of the stream. It returns an error if the stream is closed, and os.ErrDeadlineExceeded,
// after resetting the stream, if the write deadline expires. The caller holds c.mu, which is released while data
// waits.
func (st *stream) data(p []byte, end bool) error {
	c := st.c
	for {
		if st.closed {
			return st.err
		}
		n := min(int64(len(p)), st.sendWindow, c.sendWindow, int64(c.frame))
		if n <= 0 && len(p) > 0 || len(c.out) >= maxBuffered {
			if c.send(); st.closed || len(c.out) < maxBuffered && min(st.sendWindow, c.sendWindow) > 0 {
				continue
			}
			if err := st.wait(writing); err != nil {
				st.reset(http2.ErrCodeInternal)
				c.sendSoon()
				return os.ErrDeadlineExceeded
			}
			continue
		}
		grown := 0
		if c.openFrame >= 0 && c.openStream == st.id {
			grown = c.grow(p[:n], c.frame)
		}
		if grown > 0 || len(p) == 0 && c.openFrame >= 0 && c.openStream == st.id {
			n = int64(grown)
		} else {
			at := len(c.out)
			c.appendFrame(int(n), http2.FrameData, 0, st.id)
			c.out = append(c.out, p[:n]...)
			c.openFrame, c.openStream = at, st.id
		}
		st.sendWindow -= n
		c.sendWindow -= n
		c.allowOverhead(dataOverhead + int(n>>10))
		if p = p[n:]; len(p) == 0 {
			if end {
				c.out[c.openFrame+4] |= byte(http2.FlagDataEndStream)
				c.openFrame = -1
			}
			if len(c.out) >= flushThreshold && !end {
				c.send()
			}
			return nil
		}
		if len(c.out) >= flushThreshold {
			c.send()
		}
	}
}

// frameHeaders appends the HEADERS frame of the response, with a Date and a detected Content-Type if the handler has
// not set them. before and p are the first bytes of the body. end is set if there is no body. If the handler has set
// "Connection: close", the connection accepts no further streams. The caller holds c.mu.
func (w *response) frameHeaders(before, p []byte, end bool) {
	c, h := w.stream.c, w.Header()
	first := before
	if len(first) == 0 {
		first = p
	}
	if _, ok := h["Content-Type"]; !ok && bodyAllowed(w.status) && len(first) > 0 && h.Get("Content-Encoding") == "" {
		h["Content-Type"] = []string{http.DetectContentType(first)}
	}
	c.block.Reset()
	c.field(":status", statusText(w.status))
	c.fields(h)
	if _, ok := h["Date"]; !ok {
		c.field("date", date())
	}
	if v := h["Connection"]; len(v) > 0 && v[0] == "close" && !c.draining {
		// With this header a net/http handler requests that the connection is closed.
		defer func() {
			c.draining = true
			c.appendGoAway(c.lastID, http2.ErrCodeNo)
		}()
	}
	w.stream.headers(end)
}

// informational appends a response with a 1xx status, such as 100 Continue, and the header h. The
// caller holds c.mu and sends it.
func (w *response) informational(status int, h http.Header) {
	c := w.stream.c
	c.block.Reset()
	c.field(":status", statusText(status))
	c.fields(h)
	w.stream.headers(false)
}

// hasTrailers reports whether the handler has declared or set trailers.
func (w *response) hasTrailers() bool {
	if len(w.announced) > 0 {
		return true
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// frameTrailers appends the frame with the trailers, or an empty DATA frame if the declared
// trailers have no values. It ends the stream. The caller holds c.mu.
func (w *response) frameTrailers() {
	c := w.stream.c
	c.block.Reset()
	for name, values := range w.header {
		if trimmed, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			name = http.CanonicalHeaderKey(trimmed)
		} else if !slices.Contains(w.announced, name) {
			continue
		}
		for _, v := range values {
			c.field(lower(name), v)
		}
	}
	if c.block.Len() == 0 {
		c.appendFrame(0, http2.FrameData, http2.FlagDataEndStream, w.stream.id)
		return
	}
	w.stream.headers(true)
}

// fields encodes the fields of a header into the header block that is being built. It omits those that HTTP/2 does
// not allow, those with an invalid name, and trailers.
func (o *output) fields(h http.Header) {
	for name, values := range h {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		}
		if strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		low := lower(name)
		if low == "" {
			continue
		}
		for _, v := range values {
			o.field(low, v)
		}
	}
}

// field encodes one header field into the header block that is being built. A field with an invalid value is
// omitted. Values that rarely repeat are not added to the compression table.
func (o *output) field(name, value string) {
	if !httpguts.ValidHeaderFieldValue(value) {
		return
	}
	_ = o.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: notIndexed[name]}) // writes to memory
}

// notIndexed contains the names of header fields whose values rarely repeat, so that adding them to
// the compression table has no benefit.
var notIndexed = map[string]bool{"audit-id": true, "content-length": true, "etag": true, "location": true, "set-cookie": true, "authorization": true}

// headers appends the header block that was encoded last as a HEADERS frame, followed by
// CONTINUATION frames if it is large. end is set if the stream ends with it. The caller holds c.mu.
func (st *stream) headers(end bool) {
	c := st.c
	block := c.block.Bytes()
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(block), c.frame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.appendFrame(n, kind, flags, st.id)
		c.out = append(c.out, block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

// statusText returns the status code as decimal digits, for frequent ones without allocating memory.
func statusText(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusCreated:
		return "201"
	case http.StatusNotFound:
		return "404"
	case http.StatusConflict:
		return "409"
	}
	return strconv.Itoa(status)
}

// dateValue is the formatted value of the Date header, and the second for which it is valid.
type dateValue struct {
	unix int64
	text string
}

var lastDate atomic.Pointer[dateValue]

// date returns the current time in the format of the Date header. It is formatted once per second.
func date() string {
	now := time.Now()
	if s := lastDate.Load(); s != nil && s.unix == now.Unix() {
		return s.text
	}
	s := &dateValue{unix: now.Unix(), text: now.UTC().Format(http.TimeFormat)}
	lastDate.Store(s)
	return s.text
}
