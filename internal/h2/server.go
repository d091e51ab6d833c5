// Package h2 serves HTTP/2 (RFC 9113) to the clients of a net/http server, in
// place of net/http's own implementation, for a third of its CPU. Frames and
// header blocks are read by golang.org/x/net/http2 and hpack; what this package
// adds is how a connection is run:
//
//   - One goroutine a connection reads. It never writes, so window updates and
//     resets are seen whatever the client takes.
//   - One goroutine a request runs its handler. These are kept for later, for a
//     new goroutine would first have to grow its stack.
//   - Nobody writes for a living. Who has something to be sent frames it into
//     the connection's buffer; the first who comes writes the buffer, and with
//     it what others have framed meanwhile. So answers and watch events that
//     come together share TLS records and system calls, and a long answer goes
//     out in large pieces.
//   - Listen puts a buffer below TLS, so that the records of one write are one
//     system call.
//   - Timers exist only while somebody waits.
//
// Not served: server push, extended CONNECT (WebSockets come over HTTP/1.1,
// as with net/http's defaults), priorities.
package h2

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config of connections. The zero value of a field is its default.
type Config struct {
	// MaxStreams is how many requests a client may have open on a
	// connection; 250.
	MaxStreams uint32
	// WriteTimeout closes a connection that takes nothing of what is sent
	// for so long; never.
	WriteTimeout time.Duration
	// PingAfter is for how long a connection is silent before it is asked
	// whether it lives, PingTimeout how long the answer may take; never, and
	// 15 s.
	PingAfter, PingTimeout time.Duration
	// Log gets what clients do wrong, at debug level, and panics of
	// handlers; slog.Default().
	Log *slog.Logger
}

// server is what the connections of one http.Server share.
type server struct {
	cfg  Config
	http *http.Server

	workers workers

	mu      sync.Mutex
	conns   map[*conn]struct{}
	leaving bool
}

// Configure makes srv serve HTTP/2 over TLS by this package. It is called before
// srv serves. ReadTimeout and WriteTimeout of srv hold for each request,
// IdleTimeout and MaxHeaderBytes for a connection, and Shutdown waits for
// requests, as with net/http's own.
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

// serve runs a connection until its end.
func (s *server) serve(_ *http.Server, tc *tls.Conn, handler http.Handler) {
	base := context.Background()
	// net/http's way to hand the context of the connection over.
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

// shutdown has all connections end once their requests are answered.
func (s *server) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	for c := range s.conns {
		c.leave()
	}
}

// isLeaving tells whether connections are to end: those that came while they were
// told to have not been told.
func (s *server) isLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// maxParked is how many goroutines wait for requests at most.
const maxParked = 64

// workers are goroutines that run handlers.
type workers struct {
	mu     sync.Mutex
	conns  int            // without any nobody waits
	parked []chan *stream // the last that came is the first that goes
}

// run has a stream served at once.
func (w *workers) run(st *stream) {
	w.mu.Lock()
	if n := len(w.parked); n > 0 {
		next := w.parked[n-1]
		w.parked = w.parked[:n-1]
		w.mu.Unlock()
		next <- st // it has room for one
		return
	}
	w.mu.Unlock()
	go w.work(st)
}

func (w *workers) work(st *stream) {
	next := make(chan *stream, 1)
	for st != nil {
		st.serve()
		w.mu.Lock()
		if w.conns == 0 || len(w.parked) >= maxParked {
			w.mu.Unlock()
			return
		}
		w.parked = append(w.parked, next)
		w.mu.Unlock()
		st = <-next
	}
}

// connected counts a connection.
func (w *workers) connected() {
	w.mu.Lock()
	w.conns++
	w.mu.Unlock()
}

// disconnected counts one less. With the last those go who wait for requests.
func (w *workers) disconnected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns--; w.conns > 0 {
		return
	}
	for _, next := range w.parked {
		close(next)
	}
	w.parked = nil
}
