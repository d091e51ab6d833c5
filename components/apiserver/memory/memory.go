// Package memory is a way to an HTTP handler in the same process: a
// RoundTripper that calls it, without a connection, TLS or copies of bodies
// that end before they are read. Answers that stream, watches among them, do;
// connections can be taken over as well.
package memory

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// Transport is a RoundTripper into a handler. It is safe for use by several
// goroutines.
type Transport struct {
	// Handler answers.
	Handler http.Handler
	// Context, unless nil, adds to the context of every request, such as who
	// sends it.
	Context func(context.Context) context.Context
	// Brief, unless nil, tells which requests are answered whole and soon:
	// they are answered in the caller's goroutine, which is cheaper. Their
	// answers do not stream.
	Brief func(*http.Request) bool
}

// RoundTrip sends req to the handler and returns once the answer begins.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	if t.Context != nil {
		ctx = t.Context(ctx)
	}
	server := req.WithContext(ctx)
	server.Header = req.Header.Clone()
	if server.Header == nil {
		server.Header = http.Header{}
	}
	server.RequestURI = req.URL.RequestURI()
	server.Proto, server.ProtoMajor, server.ProtoMinor = "HTTP/1.1", 1, 1
	if server.Host == "" {
		server.Host = req.URL.Host
	}
	if server.Body == nil {
		server.Body = http.NoBody
	}
	w := &response{req: req, ended: ctx, cancel: cancel, header: http.Header{}, begun: make(chan struct{})}
	if t.Brief != nil && t.Brief(req) {
		w.whole = true
		t.serve(w, server)
		return w.result()
	}
	go t.serve(w, server)
	select {
	case <-w.begun:
	case <-req.Context().Done():
		cancel()
		return nil, context.Cause(req.Context())
	}
	return w.result()
}

func (t *Transport) serve(w *response, req *http.Request) {
	defer w.finish()
	defer func() {
		// The handler has its own recovery; what comes this far breaks the
		// answer off, as a server would break the connection.
		if v := recover(); v != nil {
			w.abort(fmt.Errorf("request aborted: %v", v))
		}
	}()
	t.Handler.ServeHTTP(w, req)
}

// maxGrow bounds what is set aside for an announced body.
const maxGrow = 64 << 20

// response is what the handler writes to. Until the first flush everything is
// collected; an answer that ends before is passed on without a pipe.
type response struct {
	req *http.Request
	// ended is the handler's context: nobody reads what is sent after its end.
	ended  context.Context //nolint:containedctx // it is this request's, and so is the struct
	cancel context.CancelFunc
	// whole: nobody reads before the handler has ended.
	whole bool
	// begun is closed when there is something to return.
	begun chan struct{}

	mu     sync.Mutex
	header http.Header // the handler's own
	sent   http.Header // a copy, as it was when the header was written
	code   int
	body   bytes.Buffer
	// pipe is set by the first flush.
	reader   *io.PipeReader
	pipe     *io.PipeWriter
	started  bool
	hijacked *http.Response
	err      error
}

// Header of the answer.
func (w *response) Header() http.Header { return w.header }

// WriteHeader settles status and header.
func (w *response) WriteHeader(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(code)
}

func (w *response) writeHeader(code int) {
	if w.code != 0 || code < http.StatusOK && code != http.StatusSwitchingProtocols {
		return
	}
	w.code = code
	w.sent = w.header.Clone()
	if n, err := strconv.Atoi(w.sent.Get("Content-Length")); err == nil && n > 0 && n < maxGrow {
		w.body.Grow(n)
	}
}

// Write takes a part of the body.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.writeHeader(http.StatusOK)
	pipe := w.pipe
	if pipe == nil {
		defer w.mu.Unlock()
		return w.body.Write(p)
	}
	w.mu.Unlock()
	return pipe.Write(p)
}

// Flush lets the client read what has been written.
func (w *response) Flush() {
	w.mu.Lock()
	w.writeHeader(http.StatusOK)
	if w.whole {
		w.mu.Unlock()
		return
	}
	var collected []byte
	var pipe *io.PipeWriter
	if w.pipe == nil && w.err == nil {
		w.reader, w.pipe = io.Pipe()
		pipe = w.pipe
		context.AfterFunc(w.ended, func() { pipe.CloseWithError(context.Cause(w.ended)) })
		collected = bytes.Clone(w.body.Bytes())
		w.body = bytes.Buffer{}
	}
	w.start()
	w.mu.Unlock()
	if len(collected) > 0 {
		_, _ = pipe.Write(collected)
	}
}

// start lets RoundTrip return. It wants mu held.
func (w *response) start() {
	if !w.started {
		w.started = true
		close(w.begun)
	}
}

func (w *response) abort(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *response) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hijacked != nil {
		return // the connection outlives the handler
	}
	w.writeHeader(http.StatusOK)
	if w.pipe != nil {
		if w.err != nil {
			w.pipe.CloseWithError(w.err)
		} else {
			_ = w.pipe.Close() // never fails
		}
	}
	w.start()
	w.cancel()
}

func (w *response) result() (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hijacked != nil {
		return w.hijacked, nil
	}
	if w.err != nil {
		return nil, w.err
	}
	resp := &http.Response{
		Status:     fmt.Sprintf("%d %s", w.code, http.StatusText(w.code)),
		StatusCode: w.code,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        w.sent,
		Request:       w.req,
		ContentLength: -1,
	}
	if w.pipe != nil {
		resp.Body = &stream{w.reader, w.cancel}
		return resp, nil
	}
	resp.ContentLength = int64(w.body.Len())
	resp.Body = io.NopCloser(bytes.NewReader(w.body.Bytes()))
	return resp, nil
}

// stream is a body that is still being written. Closing it ends the request.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the request.
func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// Hijack gives the handler its end of a connection; the client gets the other
// end as the body of the answer that the handler writes to it.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.code != 0 {
		return nil, nil, errors.New("taking the connection over: the answer has begun")
	}
	if w.whole {
		return nil, nil, fmt.Errorf("taking the connection over: %w", http.ErrNotSupported)
	}
	server, client := net.Pipe()
	w.hijacked = &http.Response{}
	// Who has gone before the answer does not close what it never got.
	stop := context.AfterFunc(w.ended, func() { client.Close() })
	go func() {
		buffered := bufio.NewReader(client)
		//nolint:bodyclose // who asked closes it
		resp, err := http.ReadResponse(buffered, w.req)
		if !stop() && err == nil {
			err = context.Cause(w.ended)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			client.Close()
			w.cancel()
			w.hijacked, w.err = nil, fmt.Errorf("reading the answer: %w", err)
		} else {
			if resp.StatusCode == http.StatusSwitchingProtocols {
				resp.Body = &connection{Conn: client, reader: buffered, cancel: w.cancel}
			}
			w.hijacked = resp
		}
		w.start()
	}()
	return server, bufio.NewReadWriter(bufio.NewReader(server), bufio.NewWriter(server)), nil
}

// connection is a taken over one, with what was read ahead of it.
type connection struct {
	net.Conn
	reader *bufio.Reader
	cancel context.CancelFunc
}

// Read reads what was read ahead first.
func (c *connection) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Close ends the request.
func (c *connection) Close() error {
	c.cancel()
	return c.Conn.Close()
}
