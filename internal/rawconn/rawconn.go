// Package rawconn reads and writes TCP connections by system calls that Go's
// scheduler is not told of. It need not be, for a socket that does not block is
// never waited for in the kernel. What this saves is not the telling: as soon as
// the scheduler knows of a system call, its monitor thread wakes and looks every
// 20 µs whether that takes long, for a millisecond at least, and if it does (32 KB
// take as long) it hands the processor to another thread, which has to be woken.
// On two cores a tenth of a busy API server's CPU went there.
//
// The price: nobody takes the processor away for as long as the kernel copies. And
// the monitor, which also interrupts goroutines that compute for longer than 10 ms,
// would sleep on when work begins after a pause. A timer wakes it, see Pace.
package rawconn

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Pace is what connections share: for as long as one of them is used it has a
// timer that expires now and then, so that the scheduler's monitor looks around.
// The zero value is ready; many goroutines may use it.
type Pace struct {
	used, running atomic.Bool
}

// every is how long a goroutine may have a processor that others want.
const every = 10 * time.Millisecond

// use notes that a connection is used.
func (p *Pace) use() {
	if !p.used.Load() {
		p.used.Store(true)
	}
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		time.AfterFunc(every, p.tick)
	}
}

func (p *Pace) tick() {
	if p.used.Swap(false) {
		time.AfterFunc(every, p.tick)
		return
	}
	p.running.Store(false)
}

// Listen returns l, whose TCP connections are read and written so.
func (p *Pace) Listen(l net.Listener) net.Listener { return listener{l, p} }

type listener struct {
	net.Listener
	pace *Pace
}

// Accept as net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.pace.Conn(c), nil
}

// Dialer returns a function that connects with HOST:PORT. A connection whose
// other side acknowledges nothing for the timeout breaks; zero: as the system has it.
func (p *Pace) Dialer(timeout time.Duration) func(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return setTimeout(c, timeout) }}
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return p.Conn(c), nil
	}
}
