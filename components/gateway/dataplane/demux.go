package dataplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"hyperkube/components/gateway/model"
)

// demux accepts the connections of a TLS port. It is the listener of those for the HTTP server. Those whose server name
// belongs to a TLSRoute are forwarded instead.
type demux struct {
	*server
	conns chan net.Conn
	done  chan struct{} // closed when no connection is accepted any more
	err   error         // valid after done is closed
}

// newDemux returns the demux of a server.
func newDemux(s *server) *demux {
	return &demux{server: s, conns: make(chan net.Conn), done: make(chan struct{})}
}

// run accepts the connections of a TLS port until the listener is closed. It passes them to the HTTP server or, if a
// TLSRoute is attached to the port, to route.
func (d *demux) run() {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(d.done)
	for {
		conn, err := d.accept()
		if err != nil {
			d.err = err
			return
		}
		p := d.plane.table.Load().ports[d.id]
		if p != nil && p.forwardsTLS {
			reading.Go(func() { d.route(conn) })
			continue
		}
		d.hand(conn)
	}
}

// hand passes a connection to the HTTP server, or closes it if the server is stopping.
func (d *demux) hand(conn net.Conn) {
	select {
	case d.conns <- conn:
	case <-d.stopping.Done():
		conn.Close()
	}
}

// route forwards a connection if its server name belongs to a TLSRoute, and passes it to the HTTP server if the name
// belongs to an HTTPS listener, or to no listener of a port that serves HTTPS. It closes other connections, and those
// whose client does not begin a TLS handshake in time.
func (d *demux) route(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(d.handshakeTimeout())) // an error also affects the next Read
	name, seen, err := readServerName(conn)
	_ = conn.SetReadDeadline(time.Time{})
	if err != nil {
		conn.Close()
		return
	}
	replayed := &replayConn{Conn: conn, head: seen}
	p := d.plane.table.Load().ports[d.id]
	if p == nil {
		conn.Close()
		return
	}
	l, ok := p.listeners.find(normalizeHost(name))
	if !ok && p.servesHTTP || ok && l.listener.Kind == model.HTTPS {
		d.hand(replayed) // without a listener, the TLS handshake fails with the right alert
		return
	}
	if !ok {
		conn.Close()
		return
	}
	f, ok := l.forwards.find(normalizeHost(name))
	if !ok {
		conn.Close()
		return
	}
	if l.listener.Kind == model.TLSPassthrough {
		d.forward(replayed, f)
		return
	}
	terminated := tls.Server(replayed, l.tls)
	ctx, cancel := context.WithTimeout(d.stopping, d.handshakeTimeout())
	err = terminated.HandshakeContext(ctx)
	cancel()
	if err != nil {
		conn.Close()
		return
	}
	d.forward(terminated, f)
}

// Accept implements net.Listener for the HTTP server.
func (d *demux) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.done:
		return nil, d.err
	}
}

// Close implements net.Listener.
func (d *demux) Close() error { return d.listener.Close() }

// Addr implements net.Listener.
func (d *demux) Addr() net.Addr { return d.listener.Addr() }

// replayConn is a connection of which the beginning has been read already.
type replayConn struct {
	net.Conn
	head []byte // not yet read again
}

// Read implements net.Conn.
func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite closes the write side of the connection.
func (c *replayConn) CloseWrite() error { return closeWrite(c.Conn) }

// maxClientHello limits what is read to find the server name.
const maxClientHello = 64 << 10

var errHelloRead = errors.New("the ClientHello has been read")

// readServerName reads the ClientHello of a TLS connection. It returns the server name, which may be empty, and all bytes
// that it has read. crypto/tls parses the message, so that the gateway and crypto/tls never disagree about it.
func readServerName(r io.Reader) (name string, seen []byte, err error) {
	var buffer bytes.Buffer
	parser := tls.Server(&readOnlyConn{Reader: io.TeeReader(io.LimitReader(r, maxClientHello), &buffer)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHelloRead
		},
	})
	if err = parser.Handshake(); errors.Is(err, errHelloRead) {
		return name, buffer.Bytes(), nil
	}
	if err == nil {
		err = errHelloRead // not reached: the handshake always fails
	}
	return "", nil, err
}

// readOnlyConn is a net.Conn that only reads. crypto/tls writes an alert to it, which is discarded.
type readOnlyConn struct{ io.Reader }

func (*readOnlyConn) Write(p []byte) (int, error)      { return len(p), nil }
func (*readOnlyConn) Close() error                     { return nil }
func (*readOnlyConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*readOnlyConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*readOnlyConn) SetDeadline(time.Time) error      { return nil }
func (*readOnlyConn) SetReadDeadline(time.Time) error  { return nil }
func (*readOnlyConn) SetWriteDeadline(time.Time) error { return nil }
