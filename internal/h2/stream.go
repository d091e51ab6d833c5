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

// stream is a request and its answer. The connection's lock guards it, but for
// what is its handler's alone.
type stream struct {
	c      *conn
	id     uint32
	opened time.Time
	cancel context.CancelFunc
	// wake is for who waits: its handler, for the body or for room.
	wake sync.Cond

	// The body that has come and was not read yet is body[read:].
	body []byte
	read int
	// declared is how long the body is to be, negative when nobody said;
	// received is how much of it has come.
	declared, received int64
	receiveLeft        int64
	returned           int64 // of what was received, not told to the client yet
	// ended: all of the body has come. Unwanted: nobody reads it any more. Lost:
	// the stream was closed before all that had come was read.
	ended, unwanted, lost bool
	// abandoned: the answer is complete, though the body is not.
	abandoned bool
	trailer   http.Header // what came behind the body; nil without

	sendWindow int64
	// closed: nothing more is received or sent, because of err.
	closed bool
	err    error

	// until is when waiting for the body and for room ends; zero: never.
	until [2]time.Time
	alarm [2]*time.Timer

	// The handler's alone.
	request *http.Request
	answer  response
	// before answers in place of the handler; nil: nobody does.
	before http.HandlerFunc
}

// What a stream waits for.
const (
	reading = iota
	writing
)

// newStream makes a stream of its headers.
func (c *conn) newStream(f *http2.MetaHeadersFrame) (*stream, error) {
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
		c: c, id: f.StreamID, ended: f.StreamEnded(), declared: -1,
		receiveLeft: receiveWindow, sendWindow: c.initialWindow,
	}
	st.wake.L = &c.mu
	r := http.Request{
		Method: method, URL: parsed, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: authority,
		RemoteAddr: c.remote, RequestURI: uri, TLS: &c.state, Body: http.NoBody,
	}
	if !st.ended {
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
			b.awaited = true
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
		st.until[reading] = now.Add(d)
	}
	if d := c.server.http.WriteTimeout; d > 0 {
		st.until[writing] = now.Add(d)
	}
	switch {
	case f.Truncated:
		st.before = func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "HTTP Error 431: Request Header Field(s) Too Large", http.StatusRequestHeaderFieldsTooLarge)
		}
	case err != nil:
		st.before = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, err.Error(), http.StatusBadRequest) }
	}
	return st, nil
}

// requestHeader makes the header of a request; an error when it has what
// HTTP/2 has not.
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

// announced are the trailers that a header says will come.
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

// serve runs the handler.
func (st *stream) serve() {
	panicked := true
	defer func() {
		if panicked {
			if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // what panics is compared as it is
				st.c.server.cfg.Log.Error("HTTP/2: handler panicked", "client", st.c.remote, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}
		st.finish(panicked)
	}()
	handler := st.c.handler.ServeHTTP
	if st.before != nil {
		handler = st.before
	}
	handler(&st.answer, st.request)
	panicked = false
}

// finish ends the answer and the stream once the handler has returned.
func (st *stream) finish(panicked bool) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if panicked {
		st.reset(http2.ErrCodeInternal)
	} else {
		st.answer.end()
	}
	switch {
	case st.closed:
	case st.ended:
		st.close(errClosed)
	default:
		st.abandon()
	}
	c.handlerReturned()
	c.sendAll()
}

// resetAfter is how much later than the answer a client is told that the rest of
// its body is not wanted.
const resetAfter = 50 * time.Millisecond

// abandon ends a stream whose answer does not depend on the rest of the body. Some
// clients, curl 7.88 among them, throw an answer away that comes together with the
// reset of its stream, so that comes a little later. The lock is held.
func (st *stream) abandon() {
	c := st.c
	st.abandoned, st.unwanted = true, true
	c.giveBack(int64(len(st.body) - st.read))
	st.body, st.read = nil, 0
	st.cancel()
	time.AfterFunc(resetAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		st.reset(http2.ErrCodeNo)
		c.sendSoon()
	})
}

// reset closes a stream with a reason. The lock is held, and the caller sends.
func (st *stream) reset(code http2.ErrCode) {
	if st.closed || st.c.gone {
		return
	}
	st.c.appendReset(st.id, code)
	st.close(errClosed)
}

// close ends a stream: nothing more is received or sent. The lock is held.
func (st *stream) close(err error) {
	if st.closed {
		return
	}
	c := st.c
	st.closed, st.err = true, err
	delete(c.streams, st.id)
	st.cancel()
	c.giveBack(int64(len(st.body) - st.read))
	st.lost = st.read < len(st.body)
	st.body, st.read = nil, 0
	for _, alarm := range st.alarm {
		if alarm != nil {
			alarm.Stop()
		}
	}
	st.wake.Broadcast()
	if len(c.streams) == 0 {
		c.idleSince = time.Now()
		c.maybeEnd()
	}
}

// wait waits for a change; an error when the time is over. The lock is held,
// but not meanwhile.
func (st *stream) wait(what int) error {
	if until := st.until[what]; !until.IsZero() {
		left := time.Until(until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		if st.alarm[what] == nil {
			st.alarm[what] = time.AfterFunc(left, func() {
				st.c.mu.Lock()
				st.wake.Broadcast()
				st.c.mu.Unlock()
			})
		} else {
			st.alarm[what].Reset(left)
		}
		defer st.alarm[what].Stop()
	}
	st.c.waiting++
	st.wake.Wait()
	st.c.waiting--
	return nil
}

// setDeadline ends waiting at some time.
func (st *stream) setDeadline(what int, t time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.until[what] = t
	st.wake.Broadcast()
}

// onData takes a piece of the body. The connection has taken it from its own
// window.
func (st *stream) onData(f *http2.DataFrame) error {
	c, data := st.c, f.Data()
	n := int64(f.Length)
	if n > st.receiveLeft {
		c.giveBack(n)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	}
	st.receiveLeft -= n
	st.received += int64(len(data))
	if st.declared >= 0 && (st.received > st.declared || f.StreamEnded() && st.received != st.declared) {
		c.giveBack(n)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	kept := int64(len(data))
	if st.unwanted {
		kept = 0
	} else {
		st.keep(data)
	}
	switch {
	case f.StreamEnded():
		st.ended = true
	case !st.abandoned:
		st.giveBack(n - kept)
	}
	c.giveBack(n - kept)
	if st.ended && st.abandoned {
		st.close(errClosed)
	}
	st.wake.Broadcast()
	return c.answerSoon()
}

// keep keeps a piece of the body for the handler.
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

// giveBack lets the client send n bytes more of the body, which it is told now
// and then.
func (st *stream) giveBack(n int64) {
	st.returned += n
	if st.returned >= receiveWindow/4 {
		st.c.appendWindowUpdate(st.id, st.returned)
		st.receiveLeft += st.returned
		st.returned = 0
	}
}

// onTrailer takes what comes behind the body.
func (st *stream) onTrailer(f *http2.MetaHeadersFrame) error {
	if st.ended {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	}
	if !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.declared >= 0 && st.received != st.declared {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	st.trailer = http.Header{}
	for _, field := range f.RegularFields() {
		st.trailer.Add(canonical(field.Name), field.Value)
	}
	st.ended = true
	if st.abandoned {
		st.close(errClosed)
	}
	st.wake.Broadcast()
	return nil
}

// body is what handlers read.
type body struct {
	stream *stream
	// awaited: the client waits to be told that its body is wanted.
	awaited bool
}

var errBodyClosed = http.ErrBodyReadAfterClose

// Read as io.Reader.
func (b *body) Read(p []byte) (int, error) {
	st := b.stream
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.awaited {
		b.awaited = false
		if !st.ended && !st.closed && !st.answer.begun {
			st.answer.inform(http.StatusContinue, nil)
			c.send()
		}
	}
	for {
		switch {
		case st.unwanted:
			return 0, errBodyClosed
		case st.read < len(st.body):
			n := copy(p, st.body[st.read:])
			st.read += n
			if !st.ended {
				st.giveBack(int64(n))
			}
			c.giveBack(int64(n))
			c.sendSoon()
			return n, nil
		case st.closed && (st.lost || !st.ended):
			// Not the end: half of a body may have another meaning.
			return 0, st.err
		case st.ended:
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

// Close as io.Closer: what is still to come is thrown away.
func (b *body) Close() error {
	st := b.stream
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if st.unwanted {
		return nil
	}
	st.unwanted = true
	st.c.giveBack(int64(len(st.body) - st.read))
	st.body, st.read = nil, 0
	st.c.sendSoon()
	st.wake.Broadcast()
	return nil
}
