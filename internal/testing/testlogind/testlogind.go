// Package testlogind implements the parts of logind and systemd on a system bus that are needed to test graceful node
// shutdown.
package testlogind

import (
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"hyperkube/internal/testing/testbus"
)

// Bus is a D-Bus system bus for tests, with a fake logind. Its methods are safe for concurrent use.
type Bus struct {
	*testbus.Bus
	wait  sync.WaitGroup
	locks chan struct{}

	mu     sync.Mutex // guards the fields below
	delay  time.Duration
	reload func() time.Duration
}

// Listen creates a bus on a unix socket at path, to which $DBUS_SYSTEM_BUS_ADDRESS must point.
// delay is logind's InhibitDelayMaxSec. reload returns its new value when a client makes logind
// reload its configuration. The caller must close the bus.
func Listen(path string, delay time.Duration, reload func() time.Duration) (*Bus, error) {
	b := &Bus{locks: make(chan struct{}, 16), delay: delay, reload: reload}
	var err error
	b.Bus, err = testbus.Listen(path, b.handle)
	return b, err
}

// Close closes the bus and all connections, and waits until all locks are released.
func (b *Bus) Close() {
	b.Bus.Close()
	b.wait.Wait()
}

// Released returns a channel that receives a value for each inhibitor lock that a client has
// released.
func (b *Bus) Released() <-chan struct{} { return b.locks }

// Shutdown notifies all clients that a shutdown of the machine begins or, if begins is false, was
// canceled.
func (b *Bus) Shutdown(begins bool) error {
	return b.Signal("/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", begins)
}

// handle handles the calls of clients to logind and systemd.
func (b *Bus) handle(call testbus.Call) (testbus.Reply, error) {
	switch call.Member {
	case "Get":
		b.mu.Lock()
		defer b.mu.Unlock()
		return testbus.Reply{Body: []any{dbus.MakeVariant(uint64(b.delay / time.Microsecond))}}, nil
	case "KillUnit":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.delay = b.reload()
		return testbus.Reply{}, nil
	case "Inhibit":
		fd, err := b.lock()
		return testbus.Reply{Body: []any{dbus.UnixFD(0)}, File: fd}, err
	}
	return testbus.Reply{}, testbus.NoMethod(call)
}

// lock takes an inhibitor lock for a client: it returns one end of a pipe, whose closing releases the lock.
func (b *Bus) lock() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b.wait.Go(func() {
		defer r.Close()
		_, _ = r.Read(make([]byte, 1))
		select {
		case b.locks <- struct{}{}:
		default:
		}
	})
	return w, nil
}
