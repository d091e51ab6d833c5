package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"hyperkube/components/gateway/model"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/serving/h2"
)

// class is the kind of server that a port needs.
type class int

const (
	plainClass class = iota // HTTP
	tlsClass                // TLS, with HTTP or forwarded connections
	tcpClass
	udpClass
)

// classOf returns the class of a port with listeners of the kind.
func classOf(k model.Kind) class {
	switch {
	case k == model.HTTP:
		return plainClass
	case k.UsesTLS():
		return tlsClass
	case k == model.UDP:
		return udpClass
	}
	return tcpClass
}

// server serves a port of the gateway: HTTP requests, forwarded connections or datagrams, depending on its class.
type server struct {
	plane    *Plane
	id       model.PortID
	class    class
	number   int32
	listener net.Listener // nil for UDP
	http     *http.Server // nil unless requests are served
	udp      *udpServer   // nil unless the class is udpClass
	// stopping is done when the server is being stopped; forwarded connections are then closed after the drain timeout.
	stopping context.Context //nolint:containedctx // the lifetime of the server itself
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// startServer opens a port and serves it in the background. The caller must call stop.
func (p *Plane) startServer(id model.PortID, c class, number int32) (*server, error) {
	s := &server{plane: p, id: id, class: c, number: number}
	s.stopping, s.cancel = context.WithCancel(context.Background())
	if c == udpClass {
		udp, err := newUDPServer(p, id, number)
		if err != nil {
			s.cancel()
			return nil, errorOf(id, err)
		}
		s.udp = udp
		s.running.Go(udp.serve)
		return s, nil
	}
	listener, err := net.Listen("tcp", p.listenAddress(number))
	if err != nil {
		s.cancel()
		return nil, errorOf(id, err)
	}
	listener = p.sockets.Listen(listener)
	if p.cfg.Limits.Connections > 0 {
		listener = limitConnections(listener, p.cfg.Limits.Connections)
	}
	if p.cfg.ProxyProtocol {
		listener = newProxyListener(listener, p.cfg.Limits.HeaderTimeout)
	}
	s.listener = &countingListener{listener, p.metrics}
	switch c {
	case tcpClass:
		s.running.Go(s.acceptForwarded)
	case plainClass:
		s.http = s.newHTTP()
		s.http.Protocols = new(http.Protocols)
		s.http.Protocols.SetHTTP1(true)
		s.http.Protocols.SetUnencryptedHTTP2(true)
		s.serveHTTP(s.listener)
	case tlsClass:
		s.http = s.newHTTP()
		h2.Configure(s.http, h2.Config{Log: p.log})
		demux := newDemux(s)
		s.running.Go(demux.run)
		s.serveHTTP(tls.NewListener(h2.Listen(demux), &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.tlsConfig}))
	}
	return s, nil
}

// newHTTP returns the HTTP server of the port.
func (s *server) newHTTP() *http.Server {
	l := s.plane.cfg.Limits
	return &http.Server{
		Handler: &handler{s.plane, s.id}, ReadHeaderTimeout: l.HeaderTimeout, IdleTimeout: l.IdleTimeout,
		MaxHeaderBytes: l.HeaderBytes, ErrorLog: s.plane.discard,
	}
}

// serveHTTP serves requests on listener in the background, until the server is stopped. It logs an earlier end.
func (s *server) serveHTTP(listener net.Listener) {
	s.running.Go(func() {
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) && s.stopping.Err() == nil {
			s.plane.log.Error("http server of a gateway port failed; the port does not accept connections until the gateway is restarted or the port is configured again", "port", s.id.Number, "service", s.id.Frontend, "err", err)
		}
	})
}

// tlsConfig returns the TLS configuration of the listener for the server name that a client requests. If no listener that
// terminates TLS has the name, the configuration has no certificate, so that clients receive the alert unrecognized_name.
func (s *server) tlsConfig(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	p := s.plane.table.Load().ports[s.id]
	if p == nil {
		return noCertificate(), nil
	}
	l, ok := p.listeners.find(normalizeHost(hello.ServerName))
	if !ok || l.tls == nil {
		return noCertificate(), nil
	}
	return l.tls, nil
}

// noCertificate returns a TLS configuration with which every handshake fails.
func noCertificate() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12} }

// closeListener stops accepting connections and datagrams. Forwarded connections then have the drain timeout to end.
func (s *server) closeListener() {
	s.cancel()
	if s.udp != nil {
		s.udp.conn.Close()
		return
	}
	s.listener.Close()
}

// stop stops accepting connections, waits for the active requests and forwarded connections until the drain timeout, and
// closes what is left then.
func (s *server) stop() {
	s.closeListener()
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.plane.cfg.DrainTimeout)
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close() // closes the remaining connections; the listener is closed already
		}
		cancel()
	}
	s.running.Wait()
}

// accept accepts a connection. If that fails temporarily, for example because the process has too many open files, it tries
// again after a delay.
func (s *server) accept() (net.Conn, error) {
	retry := backoff.Backoff{First: 5 * time.Millisecond, Max: time.Second}
	for {
		conn, err := s.listener.Accept()
		var t interface{ Temporary() bool }
		if err == nil || !errors.As(err, &t) || !t.Temporary() || !retry.Pause(s.stopping) {
			return conn, err
		}
	}
}

// countingListener counts accepted connections.
type countingListener struct {
	net.Listener
	metrics *metrics
}

// Accept implements net.Listener. It counts the connections.
func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.metrics.connections.Inc()
	}
	return conn, err
}

// limitConnections returns a listener that accepts a connection only while fewer than n are open.
func limitConnections(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener. It waits while the maximum number of connections is open.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn is a connection of a limitedListener, which accepts another connection when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite closes the write side, so that the other side of a forwarded connection sees the end of the data.
func (c *limitedConn) CloseWrite() error { return closeWrite(c.Conn) }

// handshakeTimeout returns the time in which a client must send what decides about its connection.
func (s *server) handshakeTimeout() time.Duration {
	if t := s.plane.cfg.Limits.HeaderTimeout; t > 0 {
		return t
	}
	return time.Minute
}
