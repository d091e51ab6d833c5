// Package rawconn reads and writes TCP connections with raw system calls, of which Go's scheduler
// is not notified. This is possible because calls on a non-blocking socket never wait in the
// kernel.
//
// The notification itself is cheap. But after a normal system call the scheduler's monitor thread
// wakes up and checks every 20 µs, for at least a millisecond, whether a call takes long. If it
// does (32 KB take that long), the monitor hands the processor to another thread, which must be
// woken. On two cores this consumed a tenth of the CPU time of a busy API server.
//
// The price is that the scheduler cannot reassign the processor while the kernel copies data. Also,
// the monitor thread, which interrupts goroutines that compute for longer than 10 ms, would not
// wake up when work resumes after a pause. A timer wakes it, see MonitorWaker.
package rawconn

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// MonitorWaker keeps the scheduler's monitor thread awake while connections are used: it runs a
// timer that wakes the thread. Connections share one. The zero value is ready to use. MonitorWaker
// is safe for concurrent use.
type MonitorWaker struct {
	used, running atomic.Bool
}

// tickInterval is the interval of the timer, and so the longest time that a goroutine may run while
// others wait for a processor.
const tickInterval = 10 * time.Millisecond

// use records that a connection is used, and starts the timer if it is not running.
func (p *MonitorWaker) use() {
	if !p.used.Load() {
		p.used.Store(true)
	}
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		time.AfterFunc(tickInterval, p.tick)
	}
}

// tick runs when the timer fires, which has woken the monitor thread. It starts the timer again if
// a connection was used meanwhile.
func (p *MonitorWaker) tick() {
	if p.used.Swap(false) {
		time.AfterFunc(tickInterval, p.tick)
		return
	}
	p.running.Store(false)
}

// Listen returns a listener whose TCP connections read and write with raw system calls.
func (p *MonitorWaker) Listen(l net.Listener) net.Listener { return listener{l, p} }

// listener is the listener that MonitorWaker.Listen returns.
type listener struct {
	net.Listener
	waker *MonitorWaker
}

// Accept implements net.Listener. The connection uses raw system calls if it is a TCP connection.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.waker.Conn(c), nil
}

// Dialer returns a function that connects to the address HOST:PORT over TCP and returns a connection with raw system
// calls. The connection fails if the peer does not acknowledge data for timeout; zero means the default of the
// system.
func (p *MonitorWaker) Dialer(timeout time.Duration) func(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return setTimeout(c, timeout) }}
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return p.Conn(c), nil
	}
}
