// Package handlertransport provides an http.RoundTripper that calls an HTTP handler in the same process,
// without a connection, TLS, or copies of bodies that are complete before they are read. It
// supports streaming responses, such as watches, and hijacked connections.
package handlertransport

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

// Transport is an http.RoundTripper whose requests are handled by an http.Handler in the same
// process. It is safe for concurrent use.
type Transport struct {
	// Handler handles the requests.
	Handler http.Handler
	// Context, unless nil, adds values such as the user to the context of every request.
	Context func(context.Context) context.Context
	// Short, unless nil, reports whether the response to a request is short and not streamed. Such
	// a request is handled in the caller's goroutine, which is cheaper, and RoundTrip returns when
	// the response is complete.
	Short func(*http.Request) bool
}

// RoundTrip passes req to the handler and returns the response as soon as its header is available; the response of a
// short request only when it is complete. Canceling the context of req cancels that of the handler. If that happens
// before the header is available, RoundTrip returns the cause.
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
	w := &response{req: req, ctx: ctx, cancel: cancel, header: http.Header{}, headerReady: make(chan struct{})}
	if t.Short != nil && t.Short(req) {
		w.unstreamed = true
		t.serve(w, server)
		return w.result()
	}
	go t.serve(w, server)
	select {
	case <-w.headerReady:
	case <-req.Context().Done():
		cancel()
		return nil, context.Cause(req.Context())
	}
	return w.result()
}

// serve calls the handler and completes the response. A panic of the handler becomes an error of
// the request.
func (t *Transport) serve(w *response, req *http.Request) {
	defer w.finish()
	defer func() {
		// The handler recovers from panics itself. A panic that reaches this point aborts the
		// response, as a server would close the connection.
		if v := recover(); v != nil {
			w.abort(fmt.Errorf("request aborted: %v", v))
		}
	}()
	t.Handler.ServeHTTP(w, req)
}

// maxGrow limits the size, in bytes, of the buffer that is allocated for the Content-Length of a
// response.
const maxGrow = 64 << 20

// response implements http.ResponseWriter. It collects the body until the handler flushes it for
// the first time; from then on the body is streamed through a pipe. A response that is complete
// before that is returned without a pipe.
type response struct {
	req *http.Request
	// ctx is the handler's context. Data written after it is done is never read.
	ctx    context.Context //nolint:containedctx // the struct lives as long as the request
	cancel context.CancelFunc
	// unstreamed means that the response is only read after the handler has returned.
	unstreamed bool
	// headerReady is closed when RoundTrip can return.
	headerReady chan struct{}

	mu     sync.Mutex
	header http.Header // modified by the handler
	sent   http.Header // a copy from the time when the header was written
	code   int
	body   bytes.Buffer
	// The pipe is created by the first flush.
	reader   *io.PipeReader
	pipe     *io.PipeWriter
	started  bool
	hijacked *http.Response
	err      error
}

// Header implements http.ResponseWriter. It returns the headers that the handler may set before the
// response begins.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. It ignores informational (1xx) responses except 101, and all calls
// after the first.
func (w *response) WriteHeader(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(code)
}

// writeHeader does the same as WriteHeader. The caller holds mu.
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

// Write implements http.ResponseWriter. Before the first flush it collects p; afterwards it blocks until the client
// has read p or the request is canceled.
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

// Flush implements http.Flusher. The first call starts streaming and lets RoundTrip return. It does nothing for short
// responses, which are complete when the handler returns.
func (w *response) Flush() {
	w.mu.Lock()
	w.writeHeader(http.StatusOK)
	if w.unstreamed {
		w.mu.Unlock()
		return
	}
	var collected []byte
	var pipe *io.PipeWriter
	if w.pipe == nil && w.err == nil {
		w.reader, w.pipe = io.Pipe()
		pipe = w.pipe
		context.AfterFunc(w.ctx, func() { pipe.CloseWithError(context.Cause(w.ctx)) })
		collected = bytes.Clone(w.body.Bytes())
		w.body = bytes.Buffer{}
	}
	w.start()
	w.mu.Unlock()
	if len(collected) > 0 {
		_, _ = pipe.Write(collected)
	}
}

// start lets RoundTrip, which waits for the header of the response, return the response. The caller holds mu.
func (w *response) start() {
	if !w.started {
		w.started = true
		close(w.headerReady)
	}
}

// abort makes RoundTrip, or reading the rest of the response body, fail with err, because the handler has panicked.
func (w *response) abort(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// finish completes the response after the handler has returned, except if the handler has hijacked
// the connection.
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

// result returns the response that RoundTrip returns, or the error with which the handler or the request has failed.
// The header must be available.
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

// stream is the body of a response that the handler is still writing. If the client closes it, the request is
// canceled.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close cancels the context of the handler and closes the pipe.
func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// Hijack implements http.Hijacker. The handler gets one end of a pipe. The client gets the other end as the body of
// the response that the handler writes to the pipe. It returns an error for short requests and after the response has
// started.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.code != 0 {
		return nil, nil, errors.New("hijacking connection: response has already started")
	}
	if w.unstreamed {
		return nil, nil, fmt.Errorf("hijacking connection: %w", http.ErrNotSupported)
	}
	server, client := net.Pipe()
	w.hijacked = &http.Response{}
	// If the client is gone before the response arrives, no other code closes its end of the pipe.
	stop := context.AfterFunc(w.ctx, func() { client.Close() })
	go func() {
		buffered := bufio.NewReader(client)
		//nolint:bodyclose // the caller closes it
		resp, err := http.ReadResponse(buffered, w.req)
		if !stop() && err == nil {
			err = context.Cause(w.ctx)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			client.Close()
			w.cancel()
			w.hijacked, w.err = nil, fmt.Errorf("reading response: %w", err)
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

// connection is the client's end of a hijacked connection. Bytes that were read with the response
// header are in reader.
type connection struct {
	net.Conn
	reader *bufio.Reader
	cancel context.CancelFunc
}

// Read implements net.Conn. It returns buffered data first.
func (c *connection) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Close cancels the context of the handler and closes the connection.
func (c *connection) Close() error {
	c.cancel()
	return c.Conn.Close()
}
