package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	bufferSize = 16 << 10
	// maxHeader limits the size of a response header, including informational responses before it.
	maxHeader = 1 << 20
	// maxInformational limits the number of informational (1xx) responses to a request.
	maxInformational = 16
)

// conn is a connection of a client. It has one request at a time. Reading from it reads from the network, within the limit for
// headers.
type conn struct {
	net.Conn
	client *Client
	reader *bufio.Reader
	writer *bufio.Writer
	// allowed is the number of bytes that may be read before the end of the header. It is negative during the body.
	allowed int

	socket syscall.RawConn // nil if unknown
	peek   func(fd uintptr) bool
	quiet  bool // result of peek
	since  time.Time
}

var errLargeHeader = fmt.Errorf("the header of the response is larger than %d bytes", maxHeader)

// Read implements io.Reader. It returns an error if the header of a response is too large.
func (k *conn) Read(p []byte) (int, error) {
	if k.allowed < 0 {
		return k.Conn.Read(p)
	}
	if k.allowed == 0 {
		return 0, errLargeHeader
	}
	n, err := k.Conn.Read(p[:min(len(p), k.allowed)])
	k.allowed -= n
	return n, err
}

// exchange is a request on a connection, until its response is complete.
type exchange struct {
	conn *conn
	ctx  context.Context //nolint:containedctx // of the request
	// stop prevents that the end of ctx closes the connection. It returns false if that has happened.
	stop func() bool
	// sent receives the result of sending the body. It is nil if the request has no body.
	sent chan error
	// keep is true if the connection can be used again after the response.
	keep     bool
	finished bool
}

// bodyError is the error of reading the body of the request.
type bodyError struct{ error }

// Unwrap returns the error of the body.
func (e bodyError) Unwrap() error { return e.error }

// roundTrip sends a request and returns the header of its response. The connection is closed if roundTrip fails, and otherwise
// when the response is complete, unless it becomes idle. The error is that of the request's body if it could not be read, or
// that of the context if it is done. It is errNotAnswered if the connection ends before the response.
func (k *conn) roundTrip(r *http.Request, uri string) (*http.Response, error) {
	x := &exchange{conn: k, ctx: r.Context()}
	x.stop = context.AfterFunc(x.ctx, func() { _ = k.Close() }) // ends all calls
	k.writeHeader(r, uri)
	if hasBody(r) {
		x.sent = make(chan error, 1)
		go func() {
			err := k.writeBody(r)
			x.sent <- err
			if _, ok := errors.AsType[bodyError](err); ok {
				_ = k.Close() // the server cannot answer an incomplete request
			}
		}()
	} else if err := k.writer.Flush(); err != nil {
		return nil, x.fail(fmt.Errorf("%w: %w", errNotAnswered, err))
	}
	res, err := x.readHeader(r)
	if err != nil {
		return nil, x.fail(err)
	}
	k.allowed = -1
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		x.finished = true
		if !x.stop() {
			return nil, x.ctx.Err()
		}
		res.Body = &upgraded{Conn: k.Conn, reader: k.reader}
	default:
		x.keep = !res.Close && !r.Close
		if res.Body == http.NoBody {
			x.finish()
		} else {
			res.Body = &body{ReadCloser: res.Body, exchange: x}
		}
	}
	return res, nil
}

// readHeader reads the header of the response. It passes informational responses to the trace of the request's context.
func (x *exchange) readHeader(r *http.Request) (*http.Response, error) {
	k := x.conn
	k.allowed = maxHeader
	if _, err := k.reader.Peek(1); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotAnswered, err)
	}
	for range maxInformational {
		res, err := http.ReadResponse(k.reader, r)
		if err != nil {
			return nil, fmt.Errorf("reading response: %w", err)
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
		if trace := httptrace.ContextClientTrace(x.ctx); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("reading response: more than %d informational responses", maxInformational)
}

// fail closes the connection and returns the reason why a request has failed: that of the context if it is done, else that
// of the request's body if it could not be read, and otherwise err.
func (x *exchange) fail(err error) error {
	x.keep = false
	x.finish()
	if x.ctx.Err() != nil {
		return x.ctx.Err()
	}
	if x.sent != nil {
		select {
		case sending := <-x.sent:
			if failed, ok := errors.AsType[bodyError](sending); ok {
				return failed.error
			}
		default:
		}
	}
	return err
}

// finish makes the connection idle if keep is set, the whole request was sent and nothing else was received. Otherwise it
// closes the connection. Further calls do nothing.
func (x *exchange) finish() {
	if x.finished {
		return
	}
	x.finished = true
	keep := x.stop() && x.keep && x.conn.reader.Buffered() == 0
	if keep && x.sent != nil {
		select {
		case err := <-x.sent:
			keep = err == nil
		default:
			keep = false // the server has answered before it has read the request
		}
	}
	if keep {
		x.conn.client.put(x.conn)
		return
	}
	_ = x.conn.Close() // the response is complete or failed
}

// body is the body of a response. At its end, the connection can be used again.
type body struct {
	io.ReadCloser
	exchange *exchange
	err      error // the first error of Read
}

// Read implements io.Reader. It returns the error of the request's context if that has ended the connection.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		b.exchange.finish()
	default:
		err = b.exchange.fail(fmt.Errorf("reading response: %w", err))
	}
	b.err = err
	return n, err
}

// Close implements io.Closer. It closes the connection if the body was not read to its end.
func (b *body) Close() error {
	b.exchange.keep = false
	b.exchange.finish()
	return nil
}

// upgraded is a connection that no longer uses HTTP.
type upgraded struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements io.Reader.
func (u *upgraded) Read(p []byte) (int, error) { return u.reader.Read(p) }

// CloseWrite closes the write side of the connection if it supports that.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// hasBody reports whether a request has a body. A body of unknown length may be empty.
func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// validate returns an error if a request cannot be sent without changing its meaning.
func validate(r *http.Request, uri string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(r.Method): // both are tokens
		return fmt.Errorf("invalid method %q", r.Method)
	case !httpguts.ValidHostHeader(r.Host):
		return errors.New("invalid host of the request")
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("invalid header name %q", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("invalid value of the header %s", name) // the value may be secret
			}
		}
	}
	if strings.ContainsFunc(uri, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return errors.New("invalid URL of the request")
	}
	return nil
}

// writeHeader writes the header of a valid request to the buffer. An error is returned by the next Flush.
func (k *conn) writeHeader(r *http.Request, uri string) {
	w := k.writer
	write := func(parts ...string) {
		for _, p := range parts {
			_, _ = w.WriteString(p) // the next Flush returns the error
		}
	}
	write(r.Method, " ", uri, " HTTP/1.1\r\nHost: ", r.Host, "\r\n")
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "User-Agent": // an empty value suppresses the default of net/http
			if len(values) == 1 && values[0] == "" {
				continue
			}
		}
		for _, v := range values {
			write(name, ": ", v, "\r\n")
		}
	}
	switch {
	case hasBody(r) && r.ContentLength > 0:
		write("Content-Length: ", strconv.FormatInt(r.ContentLength, 10), "\r\n")
	case hasBody(r):
		write("Transfer-Encoding: chunked\r\n")
	case r.Method == http.MethodPost, r.Method == http.MethodPut, r.Method == http.MethodPatch:
		write("Content-Length: 0\r\n")
	}
	if r.Close {
		write("Connection: close\r\n")
	}
	write("\r\n")
}

// buffers are those in which bodies of requests are copied.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// writeBody sends the header in the buffer and the body of a request. It sends each part of the body when it is available. The
// error is a bodyError if the body could not be read, or has another length than the request says.
func (k *conn) writeBody(r *http.Request) error {
	chunked := r.ContentLength <= 0
	if chunked {
		// The first part may depend on the response.
		if err := k.writer.Flush(); err != nil {
			return err
		}
	}
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	for total := int64(0); ; {
		n, err := r.Body.Read(buffer[:])
		total += int64(n)
		end := errors.Is(err, io.EOF)
		switch {
		case err != nil && !end:
			return bodyError{err}
		case !chunked && (total > r.ContentLength || end && total < r.ContentLength):
			return bodyError{errors.New("the body of the request has another length than its header says")}
		}
		if chunked && n > 0 {
			_, _ = k.writer.WriteString(strconv.FormatInt(int64(n), 16) + "\r\n") // the next Flush returns the error
		}
		_, _ = k.writer.Write(buffer[:n])
		if chunked && n > 0 {
			_, _ = k.writer.WriteString("\r\n")
		}
		if chunked && end {
			_, _ = k.writer.WriteString("0\r\n\r\n")
		}
		if err := k.writer.Flush(); err != nil || end || !chunked && total == r.ContentLength {
			return err
		}
	}
}
