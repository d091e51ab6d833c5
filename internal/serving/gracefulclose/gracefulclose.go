// Package gracefulclose closes connections without losing data that was written before.
package gracefulclose

import (
	"io"
	"net"
	"sync"
	"time"
)

// closeTimeout is the maximum time that a closed connection waits for its peer to close it too.
const closeTimeout = 5 * time.Second

// Conn returns conn with a Close method that does not lose written data. If a connection is closed
// while received data is unread, the kernel resets it and discards data that was not sent yet, for
// example the last output of a command that does not read its standard input. Instead, Close closes
// the write side, then reads and discards data until the peer closes the connection, for at most
// five seconds. Close returns immediately; another goroutine does the rest.
//
// A conn that does not support CloseWrite is returned unchanged.
func Conn(conn net.Conn) net.Conn {
	half, ok := conn.(halfCloser)
	if !ok {
		return conn
	}
	return &gracefulConn{halfCloser: half}
}

// halfCloser is implemented by TCP and TLS connections.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// gracefulConn is the connection that Conn returns. closing makes only the first Close have an effect.
type gracefulConn struct {
	halfCloser
	closing sync.Once
}

// Close implements net.Conn. It returns nil immediately; a goroutine closes the connection gracefully as described
// for Conn. Further calls do nothing.
func (l *gracefulConn) Close() error {
	l.closing.Do(func() {
		// This also unblocks a blocked writer, for which CloseWrite of TLS would wait.
		end := time.AfterFunc(closeTimeout, func() { l.halfCloser.Close() })
		go func() {
			defer l.halfCloser.Close()
			defer end.Stop()
			if l.CloseWrite() == nil {
				_, _ = io.Copy(io.Discard, l.halfCloser)
			}
		}()
	})
	return nil
}

// Listener returns a listener that accepts connections from l; their Close does not lose written data, as described
// for Conn.
func Listener(l net.Listener) net.Listener { return &listener{l} }

// listener is the listener that Listener returns.
type listener struct{ net.Listener }

// Accept implements net.Listener. The connection has a Close that does not lose written data.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(conn), nil
}
