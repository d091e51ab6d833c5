// Package plainhttp serves HTTP without TLS and authentication, for health checks and metrics that
// Kubernetes serves this way.
package plainhttp

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server is an HTTP server that is running in the background until it is closed.
type Server struct {
	http *http.Server
	addr net.Addr
	done chan struct{}
	err  error // valid after done is closed
}

// Serve listens on address (HOST:PORT) and serves requests with handler in the background. It
// returns an error if it cannot listen. The caller must close the Server.
func Serve(address string, handler http.Handler) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return ServeListener(listener, handler), nil
}

// ServeListener serves requests on listener in the background. Closing the Server closes listener.
func ServeListener(listener net.Listener, handler http.Handler) *Server {
	s := &Server{
		http: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second},
		addr: listener.Addr(), done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		s.err = s.http.Serve(listener)
	}()
	return s
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Done returns a channel that is closed when the server has stopped because it was closed or
// failed.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server has stopped: http.ErrServerClosed if it was closed. Call it only after
// Done is closed.
func (s *Server) Err() error { return s.err }

// Close stops the server, interrupts active requests, and waits until it accepts no connections. It does not wait for
// the handlers. It may be called more than once.
func (s *Server) Close() {
	_ = s.http.Close() // error of closing the listener, which is irrelevant
	<-s.done
}
