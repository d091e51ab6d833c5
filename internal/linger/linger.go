// Package linger closes connections without cutting off what was written to them.
package linger

import (
	"io"
	"net"
	"sync"
	"time"
)

// patience is how long a peer that goes on writing is listened to after a
// connection was closed.
const patience = 5 * time.Second

// Conn returns conn with another Close, one that does not cut off what was
// written before. The kernel resets a connection that is closed while something
// of the peer is unread, and forgets what it has not yet sent: the last output of
// a command whose standard input nobody reads any more. So the peer is told that
// nothing more comes, and what it still says is read and dropped until it
// leaves too, or for five seconds. Close returns at once; what goes on in other
// goroutines goes on until then.
//
// A conn that cannot be closed one way is returned as it is.
func Conn(conn net.Conn) net.Conn {
	half, ok := conn.(halfCloser)
	if !ok {
		return conn
	}
	return &lingering{halfCloser: half}
}

// halfCloser is what TCP's connections are, and those of TLS.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

type lingering struct {
	halfCloser
	closing sync.Once
}

// Close implements net.Conn.
func (l *lingering) Close() error {
	l.closing.Do(func() {
		// Ends a writer who is stuck too, for whom CloseWrite of TLS would wait.
		end := time.AfterFunc(patience, func() { l.halfCloser.Close() })
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

// Listener returns l with connections that linger.
func Listener(l net.Listener) net.Listener { return &listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(conn), nil
}
