// Package plainhttp serves HTTP without TLS, to everybody: health and metrics, where
// Kubernetes has them so.
package plainhttp

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server answers until it is closed.
type Server struct {
	http  *http.Server
	addr  net.Addr
	ended chan struct{}
	err   error // valid once ended is closed
}

// Serve listens on address, HOST:PORT, and answers by handler from now on. The
// caller closes the Server.
func Serve(address string, handler http.Handler) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return On(listener, handler), nil
}

// On answers at listener, which is closed with the Server.
func On(listener net.Listener, handler http.Handler) *Server {
	s := &Server{
		http: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second},
		addr: listener.Addr(), ended: make(chan struct{}),
	}
	go func() {
		defer close(s.ended)
		s.err = s.http.Serve(listener)
	}()
	return s
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Ended is closed when it answers no more, because it was closed or could not go on.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Err tells why it ended, http.ErrServerClosed when it was closed; only after Ended
// is closed.
func (s *Server) Err() error { return s.err }

// Close ends it, requests under way too, and returns when it has ended. It may be
// called again.
func (s *Server) Close() {
	_ = s.http.Close() // of the listener, which has done its work
	<-s.ended
}
