// Package h2 serves HTTP/2 (RFC 9113) for a net/http server. It replaces the implementation of
// net/http and uses a third of its CPU time. golang.org/x/net/http2 and hpack decode frames and
// header blocks; this package implements the connection handling:
//
//   - One goroutine per connection reads. It never writes, so it processes window updates and resets
//     even if the client does not read.
//   - One goroutine per request runs its handler. Goroutines are reused, because a new goroutine would
//     have to grow its stack first.
//   - There is no writer goroutine. A sender appends its frames to the buffer of the connection. The
//     first sender writes the buffer, including frames that others have appended by then. So
//     simultaneous responses and watch events share TLS records and system calls, and a long response
//     is written in large pieces.
//   - Listen adds a buffer below TLS, so that all TLS records of one write need one system call.
//   - Timers exist only while a goroutine waits.
//
// Not supported: server push, extended CONNECT (WebSockets use HTTP/1.1, as with the defaults of
// net/http), priorities.
package h2

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config configures the HTTP/2 connections of a server. Zero values select the defaults.
type Config struct {
	// MaxStreams is the maximum number of concurrent requests per connection. Default: 250.
	MaxStreams uint32
	// WriteTimeout closes a connection if the client accepts no bytes for this time. Default:
	// never.
	WriteTimeout time.Duration
	// PingAfter is the time without received frames after which a ping is sent, PingTimeout the
	// time that the client has to respond. Defaults: never, 15 s.
	PingAfter, PingTimeout time.Duration
	// Log receives protocol errors of clients at debug level, and panics of handlers. Default:
	// slog.Default().
	Log *slog.Logger
}

// server contains the state that the HTTP/2 connections of one http.Server share.
type server struct {
	cfg  Config
	http *http.Server

	workers workers

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
}

// Configure makes srv serve HTTP/2 over TLS with this package. Call it before srv serves. ReadTimeout and
// WriteTimeout of srv apply to each request, IdleTimeout and MaxHeaderBytes to each connection. Shutdown waits for
// active requests, as with net/http.
func Configure(srv *http.Server, cfg Config) {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 250
	}
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &server{cfg: cfg, http: srv, conns: map[*conn]struct{}{}}
	if srv.TLSNextProto == nil {
		srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	srv.TLSNextProto["h2"] = s.serve
	srv.RegisterOnShutdown(s.shutdown)
}

// serve serves a connection on which the client has negotiated HTTP/2, until it is closed. net/http
// calls it after the TLS handshake.
func (s *server) serve(_ *http.Server, tc *tls.Conn, handler http.Handler) {
	base := context.Background()
	// net/http passes the context of the connection this way.
	if h, ok := handler.(interface{ BaseContext() context.Context }); ok {
		base = h.BaseContext()
	}
	c := newConn(s, tc, handler, base)
	s.workers.connected()
	defer s.workers.disconnected()
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	c.serve()
}

// shutdown makes all connections refuse new requests and close after their active ones.
// http.Server.Shutdown calls it.
func (s *server) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for c := range s.conns {
		c.drain()
	}
}

// isDraining reports whether the server is shutting down. New connections check it, because shutdown
// may have missed them.
func (s *server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// maxIdleWorkers is the maximum number of worker goroutines that wait for the next request.
const maxIdleWorkers = 64

// workers are the goroutines that run request handlers. They are reused, because a new goroutine
// would have to grow its stack first.
type workers struct {
	mu    sync.Mutex
	conns int            // without connections there are no idle workers
	idle  []chan *stream // idle workers, used in last-in, first-out order
}

// run makes an idle worker serve the request of a stream, or starts a new one if none is idle. It does not block.
func (w *workers) run(st *stream) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		next <- st // never blocks: the channel has a buffer of one
		return
	}
	w.mu.Unlock()
	go w.work(st)
}

// work serves st and then the streams that run passes to this worker. It returns when there are maxIdleWorkers other
// idle workers or no connections.
func (w *workers) work(st *stream) {
	next := make(chan *stream, 1)
	for st != nil {
		st.serve()
		w.mu.Lock()
		if w.conns == 0 || len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, next)
		w.mu.Unlock()
		st = <-next
	}
}

// connected counts a new connection. Idle workers are only kept while there are connections.
func (w *workers) connected() {
	w.mu.Lock()
	w.conns++
	w.mu.Unlock()
}

// disconnected counts a closed connection. After the last one, it terminates the idle workers.
func (w *workers) disconnected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns--; w.conns > 0 {
		return
	}
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}

// maxHeaders returns the maximum size of a request header, in bytes, that is announced to clients.
func (s *server) maxHeaders() uint32 {
	n := s.http.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	// Accept as many bytes as HTTP/1 does, plus the HTTP/2 overhead of some fields.
	return uint32(min(n+10*32, 1<<31-1))
}

// keepaliveInterval returns the maximum time until conn.checkKeepalive runs next: PingAfter or IdleTimeout, if one of
// them is shorter than a minute, otherwise a minute.
func (s *server) keepaliveInterval() time.Duration {
	every := time.Minute
	for _, d := range []time.Duration{s.cfg.PingAfter, s.http.IdleTimeout} {
		if d > 0 {
			every = min(every, d)
		}
	}
	return every
}
