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

// mostHeld is how much of an answer is held back until its handler returns or
// flushes.
const mostHeld = 16 << 10

// response is what handlers write to. It is its handler's alone, but for what
// is done under the connection's lock.
type response struct {
	stream *stream
	header http.Header
	status int
	// declared is the length of the body that the header tells, negative
	// without; written how much the handler wrote.
	declared, written int64
	head              bool // the answer to HEAD has no body
	// held is what was written and not framed yet; nil: nothing.
	held *[]byte
	// begun: the header was framed. Ended: all was.
	begun, ended bool
	done         bool // the handler has returned
	// announced are the names of trailers.
	announced []string
}

// Header as http.ResponseWriter.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header, 8)
	}
	return w.header
}

// WriteHeader as http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || w.done {
		return
	}
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status)) // as net/http; the stream ends, not the program
	}
	if status < 200 {
		c := w.stream.c
		c.mu.Lock()
		defer c.mu.Unlock()
		if !w.stream.closed {
			w.inform(status, w.header)
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

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write as http.ResponseWriter. What does not fit is written once there is
// much of it, at the latest with the next Flush.
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
	if !w.begun && w.declared <= mostHeld && w.hold(p) {
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

// held are the buffers of answers that are held back.
var held = sync.Pool{New: func() any { return new([]byte) }}

// hold holds p back, unless that were too much.
func (w *response) hold(p []byte) bool {
	if w.held == nil {
		w.held = held.Get().(*[]byte)
	}
	if len(*w.held)+len(p) > mostHeld {
		return false
	}
	*w.held = append(*w.held, p...)
	return true
}

// WriteString as io.StringWriter.
func (w *response) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush as http.Flusher.
func (w *response) Flush() { _ = w.FlushError() } // the next write tells

// FlushError sends what was written, or leaves it to who is sending already.
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

// yield lets others who are about to send something on the connection do so
// first: what wakes one watch often wakes many. The lock is held, but not
// meanwhile.
func (c *conn) yield() {
	if !c.writing && len(c.streams) > 1 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// SetReadDeadline is for http.ResponseController.
func (w *response) SetReadDeadline(t time.Time) error {
	w.stream.setDeadline(reading, t)
	return nil
}

// SetWriteDeadline is for http.ResponseController.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.stream.setDeadline(writing, t)
	return nil
}

// EnableFullDuplex is for http.ResponseController: it always is.
func (w *response) EnableFullDuplex() error { return nil }

// end frames the rest of the answer. The lock is held.
func (w *response) end() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.done = true
	short := !w.head && bodyAllowed(w.status) && w.declared > w.written
	if !w.begun && !w.head && w.declared < 0 && bodyAllowed(w.status) {
		// All of it is known.
		w.declared = w.written
		w.Header()["Content-Length"] = []string{strconv.FormatInt(w.written, 10)}
	}
	if err := w.frame(nil, !short); err != nil {
		return
	}
	if short {
		w.stream.reset(http2.ErrCodeInternal) // the client would wait for the rest
	}
}

// frame frames the header, unless it is already, what was held back and p.
// The lock is held, but not while it waits for room.
func (w *response) frame(p []byte, end bool) error {
	st := w.stream
	if st.closed {
		return st.err
	}
	if w.ended {
		return errClosed
	}
	var before []byte
	if w.held != nil {
		before = *w.held
		defer func(b *[]byte) {
			*b = (*b)[:0]
			held.Put(b)
		}(w.held)
		w.held = nil
	}
	trailing := end && w.trailing()
	if !w.begun {
		w.begun = true
		empty := end && len(before)+len(p) == 0 && !trailing
		w.begin(before, p, empty)
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
			w.trail()
		}
		w.ended = true
	}
	return nil
}

// data frames a piece of the body as far as there is room, and waits for more.
func (st *stream) data(p []byte, end bool) error {
	c := st.c
	for {
		if st.closed {
			return st.err
		}
		n := min(int64(len(p)), st.sendWindow, c.sendWindow, int64(c.frame))
		if n <= 0 && len(p) > 0 || len(c.out) >= mostOut {
			if c.send(); st.closed || len(c.out) < mostOut && min(st.sendWindow, c.sendWindow) > 0 {
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
		if c.open >= 0 && c.openOf == st.id {
			grown = c.grow(p[:n], c.frame)
		}
		if grown > 0 || len(p) == 0 && c.open >= 0 && c.openOf == st.id {
			n = int64(grown)
		} else {
			at := len(c.out)
			c.appendFrame(int(n), http2.FrameData, 0, st.id)
			c.out = append(c.out, p[:n]...)
			c.open, c.openOf = at, st.id
		}
		st.sendWindow -= n
		c.sendWindow -= n
		if p = p[n:]; len(p) == 0 {
			if end {
				c.out[c.open+4] |= byte(http2.FlagDataEndStream)
				c.open = -1
			}
			if len(c.out) >= fullAt && !end {
				c.send()
			}
			return nil
		}
		if len(c.out) >= fullAt {
			c.send()
		}
	}
}

// begin frames the header.
func (w *response) begin(before, p []byte, end bool) {
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
	if v := h["Connection"]; len(v) > 0 && v[0] == "close" && !c.leaving {
		// net/http's way to ask for the connection to end.
		defer func() {
			c.leaving = true
			c.appendGoAway(c.lastID, http2.ErrCodeNo)
		}()
	}
	w.stream.headers(end)
}

// inform frames an answer that is none yet. The lock is held.
func (w *response) inform(status int, h http.Header) {
	c := w.stream.c
	c.block.Reset()
	c.field(":status", statusText(status))
	c.fields(h)
	w.stream.headers(false)
}

// trailing tells whether something comes behind the body.
func (w *response) trailing() bool {
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

// trail frames the trailers.
func (w *response) trail() {
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

// fields encodes a header, but for what HTTP/2 has not.
func (c *conn) fields(h http.Header) {
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
			c.field(low, v)
		}
	}
}

// field encodes a field, unless it is none. Values that hardly come again are
// kept out of the table.
func (c *conn) field(name, value string) {
	if !httpguts.ValidHeaderFieldValue(value) {
		return
	}
	_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: once[name]}) // to memory
}

// once are the names of fields whose values are others each time.
var once = map[string]bool{"audit-id": true, "content-length": true, "etag": true, "location": true, "set-cookie": true, "authorization": true}

// headers frames what has been encoded.
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

// second is a time as it is told in headers.
type second struct {
	unix int64
	text string
}

var lastSecond atomic.Pointer[second]

// date is the present time for headers, made once a second.
func date() string {
	now := time.Now()
	if s := lastSecond.Load(); s != nil && s.unix == now.Unix() {
		return s.text
	}
	s := &second{unix: now.Unix(), text: now.UTC().Format(http.TimeFormat)}
	lastSecond.Store(s)
	return s.text
}
