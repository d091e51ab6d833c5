package dataplane

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"hyperkube/components/gateway/model"
)

// acceptForwarded accepts connections of a TCP port and forwards them, until the listener is closed and all
// connections have ended. It closes connections while the port has no route.
func (s *server) acceptForwarded() {
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	for {
		conn, err := s.accept()
		if err != nil {
			return
		}
		f := s.plane.forwardOf(s.id)
		if f == nil {
			conn.Close()
			continue
		}
		forwarding.Go(func() { s.forward(conn, f) })
	}
}

// forwardOf returns the route of a TCP or UDP port, or nil if it has none.
func (p *Plane) forwardOf(id model.PortID) *forward {
	t := p.table.Load().ports[id]
	if t == nil || !t.listeners.hasAll {
		return nil
	}
	f, _ := t.listeners.all.forwards.find("")
	return f
}

// forward connects a connection with an endpoint, and copies data in both directions until both sides have closed. It
// closes the connection. When the server is stopped, the connection has the drain timeout to end.
func (s *server) forward(conn net.Conn, f *forward) {
	defer conn.Close()
	t := f.targets.pick()
	if t == nil || t.pool == nil {
		return
	}
	backend, err := t.pool.dial(s.stopping)
	if err != nil {
		s.plane.log.Debug("connecting to all tried endpoints of a backend failed, closing the connection of the client", "route", f.name, "backend", t.pool.backend.Key.String(), "err", err)
		return
	}
	defer backend.Close()
	closeBoth := func() {
		conn.Close()
		backend.Close()
	}
	var timer *time.Timer
	var mu sync.Mutex // guards timer
	unhook := context.AfterFunc(s.stopping, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(s.plane.cfg.DrainTimeout, closeBoth)
	})
	defer func() {
		unhook()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
	}()
	idle := newIdle(s.plane.cfg.Limits.IdleTimeout, closeBoth)
	defer idle.stop()
	var copying sync.WaitGroup
	copying.Go(func() { pipe(backend, conn, idle) })
	pipe(conn, backend, idle)
	copying.Wait()
}

// pipe copies data from one connection to the other, and then closes the write side of the other.
func pipe(to, from net.Conn, idle *idle) {
	_, err := io.Copy(&touching{to, idle}, from)
	if err != nil && !errors.Is(err, io.EOF) {
		// The other direction cannot complete either.
		to.Close()
		from.Close()
		return
	}
	_ = closeWrite(to) // fails if the connection is closed already
}

// closeWrite closes the write side of a connection if it supports that, and otherwise the connection.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// idle calls a function when no data was copied between a client and a backend for a time.
type idle struct {
	timeout time.Duration
	timer   *time.Timer // nil without a limit
}

// newIdle returns an idle that calls f once when touch was not called for the timeout. If the timeout is zero, f is
// never called.
func newIdle(timeout time.Duration, f func()) *idle {
	i := &idle{timeout: timeout}
	if timeout > 0 {
		i.timer = time.AfterFunc(timeout, f)
	}
	return i
}

// touch restarts the timeout.
func (i *idle) touch() {
	if i.timer != nil {
		i.timer.Reset(i.timeout)
	}
}

// stop prevents the call of the function.
func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}

// touching is a connection that restarts the timeout of an idle at each write.
type touching struct {
	net.Conn
	idle *idle
}

// Write implements io.Writer.
func (t *touching) Write(p []byte) (int, error) {
	t.idle.touch()
	return t.Conn.Write(p)
}
