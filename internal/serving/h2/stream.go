package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// stream is one request and its response. The connection's lock guards it, except for the fields
// that only the handler uses.
type stream struct {
	c      *conn
	id     uint32
	opened time.Time
	cancel context.CancelFunc
	// wake wakes the handler when it waits for the body or for window or buffer space.
	wake sync.Cond

	requestBody

	sendWindow int64
	// closed is set when nothing more is received or sent; err is the reason.
	closed bool
	err    error

	// deadlines contains the read and write deadlines; zero means none. timers contains their timers.
	deadlines [2]time.Time
	timers    [2]*time.Timer

	// Used by the handler's goroutine only.
	request *http.Request
	answer  response
	// overrideHandler responds instead of the handler if it is not nil.
	overrideHandler http.HandlerFunc
}

// requestBody is the received part of a request body that the handler has not read, and the state
// of receiving it. The connection's lock guards it.
type requestBody struct {
	// body[read:] is the part of the body that was received but not read by the handler yet.
	body []byte
	read int
	// declared is the value of Content-Length, negative if there is none. received is the number of
	// received body bytes.
	declared, received int64
	receiveLeft        int64
	windowUpdate       int64 // received bytes not yet reported in a WINDOW_UPDATE
	// bodyComplete is set when the complete body was received, bodyDiscarded when the handler does not
	// read it anymore, bodyLost when the stream was closed before all received bytes were read.
	bodyComplete, bodyDiscarded, bodyLost bool
	// abandoned is set when the response is complete although the request body is not.
	abandoned bool
	trailer   http.Header // received trailers; nil if there are none
}

// reading and writing are what a handler can wait for: data of the request body, or space to write the response.
// Each has a deadline.
const (
	reading = iota
	writing
)

// newStream creates a stream from the HEADERS frame of a request. It returns a StreamError if the
// request is malformed. Invalid or too large headers are not an error; the stream then responds
// with 400 or 431 instead of calling the handler.
func newStream(c *conn, f *http2.MetaHeadersFrame) (*stream, error) {
	malformed := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	var method, scheme, authority, path string
	for _, p := range f.PseudoFields() {
		switch p.Name {
		case ":method":
			method = p.Value
		case ":scheme":
			scheme = p.Value
		case ":authority":
			authority = p.Value
		case ":path":
			path = p.Value
		default:
			return nil, malformed
		}
	}
	connect := method == http.MethodConnect
	switch {
	case connect && (path != "" || scheme != "" || authority == ""),
		!connect && (method == "" || path == "" || scheme != "https" && scheme != "http"),
		strings.Contains(authority, "@"):
		return nil, malformed
	}
	header, err := requestHeader(f)
	if authority == "" {
		authority = header.Get("Host")
	}
	uri, parsed := path, &url.URL{Host: authority}
	if connect {
		uri = authority
	} else {
		var invalid error
		if parsed, invalid = url.ParseRequestURI(path); invalid != nil {
			return nil, malformed
		}
	}
	st := &stream{
		c: c, id: f.StreamID, sendWindow: c.initialWindow,
		requestBody: requestBody{bodyComplete: f.StreamEnded(), declared: -1, receiveLeft: receiveWindow},
	}
	st.wake.L = &c.mu
	r := http.Request{
		Method: method, URL: parsed, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: authority,
		RemoteAddr: c.remote, RequestURI: uri, TLS: &c.state, Body: http.NoBody,
	}
	if !st.bodyComplete {
		b := &body{stream: st}
		r.Body = b
		r.ContentLength = -1
		if length, ok := header["Content-Length"]; ok {
			n, err := strconv.ParseUint(length[0], 10, 63)
			if err != nil || len(length) > 1 {
				return nil, malformed
			}
			r.ContentLength = int64(n)
		}
		st.declared = r.ContentLength
		if expect, ok := header["Expect"]; ok && httpguts.HeaderValuesContainsToken(expect, "100-continue") {
			delete(header, "Expect")
			b.expectContinue = true
		}
		r.Trailer = announced(header)
	}
	ctx, cancel := context.WithCancel(c.base)
	st.cancel = cancel
	st.request = r.WithContext(ctx)
	st.answer = response{stream: st, declared: -1, head: method == http.MethodHead}
	now := time.Now()
	st.opened = now
	if d := c.server.http.ReadTimeout; d > 0 {
		st.deadlines[reading] = now.Add(d)
	}
	if d := c.server.http.WriteTimeout; d > 0 {
		st.deadlines[writing] = now.Add(d)
	}
	switch {
	case f.Truncated:
		st.overrideHandler = func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "HTTP Error 431: Request Header Field(s) Too Large", http.StatusRequestHeaderFieldsTooLarge)
		}
	case err != nil:
		st.overrideHandler = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, err.Error(), http.StatusBadRequest) }
	}
	return st, nil
}

// requestHeader returns the header of a request, in canonical form and with its cookies joined, and an error if it
// contains fields that HTTP/2 does not allow. The header is valid also with an error.
func requestHeader(f *http2.MetaHeadersFrame) (http.Header, error) {
	fields := f.RegularFields()
	header := make(http.Header, len(fields))
	values := make([]string, len(fields))
	var err error
	for i, field := range fields {
		key := canonical(field.Name)
		switch key {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			err = fmt.Errorf("request header %q is not valid in HTTP/2", key)
		case "Te":
			if field.Value != "" && field.Value != "trailers" {
				err = errors.New(`request header "TE" may only be "trailers" in HTTP/2`)
			}
		}
		if before := header[key]; before != nil {
			header[key] = append(before, field.Value)
			continue
		}
		values[i] = field.Value
		header[key] = values[i : i+1 : i+1]
	}
	if cookies := header["Cookie"]; len(cookies) > 1 {
		header["Cookie"] = []string{strings.Join(cookies, "; ")}
	}
	return header, err
}

// announced returns a header with the names of the trailers that the Trailer field declares, without values, or nil
// if there are none. It removes that field from header.
func announced(header http.Header) http.Header {
	values, ok := header["Trailer"]
	if !ok {
		return nil
	}
	delete(header, "Trailer")
	var out http.Header
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			switch name = http.CanonicalHeaderKey(textproto.TrimString(name)); name {
			case "Transfer-Encoding", "Trailer", "Content-Length":
			default:
				if out == nil {
					out = http.Header{}
				}
				out[name] = nil
			}
		}
	}
	return out
}

// serve runs the handler, or overrideHandler if it is set, and completes the response. If the handler panics, it
// resets the stream and logs the panic, unless that is http.ErrAbortHandler.
func (st *stream) serve() {
	panicked := true
	defer func() {
		if panicked {
			if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // what panics is compared as it is
				st.c.server.cfg.Log.Error("HTTP/2 request handler panicked; this request was aborted, other requests are not affected: report this bug with the stack", "method", st.request.Method, "path", st.request.URL.Path, "client", st.c.remote, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}
		st.finish(panicked)
	}()
	handler := st.c.handler.ServeHTTP
	if st.overrideHandler != nil {
		handler = st.overrideHandler
	}
	handler(&st.answer, st.request)
	panicked = false
}

// finish completes the response and closes the stream after the handler has returned, and starts the handler of a
// pending stream. panicked means that the stream is reset instead.
func (st *stream) finish(panicked bool) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if panicked {
		st.reset(http2.ErrCodeInternal)
	} else {
		st.answer.complete()
	}
	switch {
	case st.closed:
	case st.bodyComplete:
		st.close(errClosed)
	default:
		st.abandon()
	}
	c.handlerReturned()
	c.sendAll()
}

// resetAfter is the delay between the complete response and the reset of a stream whose request
// body is incomplete and not needed.
const resetAfter = 50 * time.Millisecond

// abandon ends a stream after the complete response although the client is still sending the request body. It
// discards the rest of the body and resets the stream after resetAfter. The reset is delayed, because some clients,
// including curl 7.88, discard a response that arrives together with a reset. The caller holds c.mu.
func (st *stream) abandon() {
	c := st.c
	st.abandoned, st.bodyDiscarded = true, true
	c.returnWindow(int64(len(st.body) - st.read))
	st.body, st.read = nil, 0
	st.cancel()
	time.AfterFunc(resetAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		st.reset(http2.ErrCodeNo)
		c.sendSoon()
	})
}

// reset appends RST_STREAM with the error code and closes the stream. It does nothing if the stream or the connection
// is closed. The caller holds c.mu and sends the frame.
func (st *stream) reset(code http2.ErrCode) {
	if st.closed || st.c.failed {
		return
	}
	st.c.appendReset(st.id, code)
	st.c.resets.add(st.id)
	st.close(errClosed)
}

// close closes the stream: nothing more is received or sent, received data is discarded, and the context of the
// request is canceled. The handler's reads and writes return err, except that a read at the end of a complete body
// returns io.EOF. Further calls do nothing. The caller holds c.mu.
func (st *stream) close(err error) {
	if st.closed {
		return
	}
	c := st.c
	st.closed, st.err = true, err
	delete(c.streams, st.id)
	st.cancel()
	c.returnWindow(int64(len(st.body) - st.read))
	st.bodyLost = st.read < len(st.body)
	st.body, st.read = nil, 0
	for _, alarm := range st.timers {
		if alarm != nil {
			alarm.Stop()
		}
	}
	st.wake.Broadcast()
	if len(c.streams) == 0 {
		c.idleSince = time.Now()
		c.maybeClose()
	}
}

// wait blocks until the stream may have changed or the deadline for what (reading or writing) expires. It returns
// os.ErrDeadlineExceeded if the deadline had already expired when it was called. The caller holds c.mu, which is
// released during the wait, and checks its condition again.
func (st *stream) wait(what int) error {
	if until := st.deadlines[what]; !until.IsZero() {
		left := time.Until(until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		if st.timers[what] == nil {
			st.timers[what] = time.AfterFunc(left, func() {
				st.c.mu.Lock()
				st.wake.Broadcast()
				st.c.mu.Unlock()
			})
		} else {
			st.timers[what].Reset(left)
		}
		defer st.timers[what].Stop()
	}
	st.c.waiting++
	st.wake.Wait()
	st.c.waiting--
	return nil
}

// setDeadline sets the deadline for what: reading or writing. The zero time means none. A waiting
// handler applies it immediately.
func (st *stream) setDeadline(what int, t time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.deadlines[what] = t
	st.wake.Broadcast()
}

// onData handles a DATA frame: it stores the data for the handler, or discards it if the handler does not read the
// body anymore. It returns a StreamError if the frame exceeds the stream's window or the Content-Length. The caller
// holds c.mu and has subtracted the length from the receive window of the connection.
func (st *stream) onData(f *http2.DataFrame) error {
	c, data := st.c, f.Data()
	n := int64(f.Length)
	if len(data) == 0 && !f.StreamEnded() {
		if err := c.overhead(1); err != nil {
			return err
		}
	}
	if n > st.receiveLeft {
		c.returnWindow(n)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	}
	st.receiveLeft -= n
	st.received += int64(len(data))
	if st.declared >= 0 && (st.received > st.declared || f.StreamEnded() && st.received != st.declared) {
		c.returnWindow(n)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	kept := int64(len(data))
	if st.bodyDiscarded {
		kept = 0
	} else {
		st.keep(data)
	}
	switch {
	case f.StreamEnded():
		st.bodyComplete = true
	case !st.abandoned:
		st.returnWindow(n - kept)
	}
	c.returnWindow(n - kept)
	if st.bodyComplete && st.abandoned {
		st.close(errClosed)
	}
	st.wake.Broadcast()
	return c.answerSoon()
}

// keep appends data to the buffer from which the handler reads the request body. It moves unread
// bytes to the beginning of the buffer if that saves memory.
func (st *stream) keep(data []byte) {
	if st.read > 0 && st.read == len(st.body) {
		st.body, st.read = st.body[:0], 0
	}
	if st.body == nil && st.declared > 0 {
		st.body = make([]byte, 0, min(st.declared, receiveWindow/16))
	}
	if cap(st.body)-len(st.body) < len(data) && st.read >= len(st.body)/2 {
		st.body, st.read = st.body[:copy(st.body, st.body[st.read:])], 0
	}
	st.body = append(st.body, data...)
}

// returnWindow allows the client to send n more bytes of this request body. To save frames, a
// WINDOW_UPDATE is appended only when enough bytes have accumulated. The caller holds c.mu.
func (st *stream) returnWindow(n int64) {
	st.windowUpdate += n
	if st.windowUpdate >= receiveWindow/4 {
		st.c.appendWindowUpdate(st.id, st.windowUpdate)
		st.receiveLeft += st.windowUpdate
		st.windowUpdate = 0
	}
}

// onTrailer handles the HEADERS frame with the trailers of a request, which ends its body. It returns a StreamError
// if the body had ended already or is shorter than its Content-Length, or if the trailers are malformed. The caller
// holds c.mu.
func (st *stream) onTrailer(f *http2.MetaHeadersFrame) error {
	if st.bodyComplete {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	}
	if !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.declared >= 0 && st.received != st.declared {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	st.trailer = http.Header{}
	for _, field := range f.RegularFields() {
		st.trailer.Add(canonical(field.Name), field.Value)
	}
	st.bodyComplete = true
	if st.abandoned {
		st.close(errClosed)
	}
	st.wake.Broadcast()
	return nil
}

// body is the http.Request.Body of a stream, from which the handler reads the data that the client
// sends.
type body struct {
	stream *stream
	// expectContinue is set when the client waits for a 100 Continue response.
	expectContinue bool
}

var errBodyClosed = http.ErrBodyReadAfterClose

// Read implements io.Reader. It blocks until a part of the body is received. It returns io.EOF after the complete
// body, and then sets the declared trailers of the request. It returns another error if the stream or the body was
// closed before everything was read, or if the read deadline expires. If the client expects it, the first call sends
// 100 Continue.
func (b *body) Read(p []byte) (int, error) {
	st := b.stream
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.expectContinue {
		b.expectContinue = false
		if !st.bodyComplete && !st.closed && !st.answer.headerFramed {
			st.answer.informational(http.StatusContinue, nil)
			c.send()
		}
	}
	for {
		switch {
		case st.bodyDiscarded:
			return 0, errBodyClosed
		case st.read < len(st.body):
			n := copy(p, st.body[st.read:])
			st.read += n
			if !st.bodyComplete {
				st.returnWindow(int64(n))
			}
			c.returnWindow(int64(n))
			c.sendSoon()
			return n, nil
		case st.closed && (st.bodyLost || !st.bodyComplete):
			// Do not return io.EOF: the handler would take a partial body for the complete one.
			return 0, st.err
		case st.bodyComplete:
			for name := range st.request.Trailer {
				if v, ok := st.trailer[name]; ok {
					st.request.Trailer[name] = v
				}
			}
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		if err := st.wait(reading); err != nil {
			return 0, err
		}
	}
}

// Close implements io.Closer. It discards the part of the body that was not read, and always returns nil.
func (b *body) Close() error {
	st := b.stream
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if st.bodyDiscarded {
		return nil
	}
	st.bodyDiscarded = true
	st.c.returnWindow(int64(len(st.body) - st.read))
	st.body, st.read = nil, 0
	st.c.sendSoon()
	st.wake.Broadcast()
	return nil
}
