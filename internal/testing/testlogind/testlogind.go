// Package testlogind implements a system bus for tests, with the parts of logind and systemd that
// are needed to test graceful node shutdown.
package testlogind

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Bus accepts clients until it is closed. Its methods are safe for concurrent use.
type Bus struct {
	listener *net.UnixListener
	wait     sync.WaitGroup
	locks    chan struct{}

	mu      sync.Mutex // guards the fields below
	delay   time.Duration
	reload  func() time.Duration
	clients map[*client]bool
}

type client struct {
	bus    *Bus
	conn   *net.UnixConn
	mu     sync.Mutex // held while a message is written
	serial uint32
}

// Listen creates a bus on a socket, to which $DBUS_SYSTEM_BUS_ADDRESS must point. delay is logind's
// InhibitDelayMaxSec. reload returns its value after logind has reloaded its configuration.
func Listen(path string, delay time.Duration, reload func() time.Duration) (*Bus, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	b := &Bus{listener: l, delay: delay, reload: reload, locks: make(chan struct{}, 16), clients: map[*client]bool{}}
	b.wait.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := &client{bus: b, conn: conn}
			b.mu.Lock()
			b.clients[c] = true
			b.mu.Unlock()
			b.wait.Go(func() {
				defer conn.Close()
				_ = c.serve()
				b.mu.Lock()
				delete(b.clients, c)
				b.mu.Unlock()
			})
		}
	})
	return b, nil
}

// Close closes the bus and all connections.
func (b *Bus) Close() {
	_ = b.listener.Close()
	b.Drop()
	b.wait.Wait()
}

// Drop closes all connections.
func (b *Bus) Drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.clients {
		c.conn.Close()
	}
}

// Released receives a value for each released inhibitor lock.
func (b *Bus) Released() <-chan struct{} { return b.locks }

// Shutdown notifies all clients that a shutdown begins or was canceled.
func (b *Bus) Shutdown(begins bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for c := range b.clients {
		errs = append(errs, c.send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
			dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.login1.Manager"),
			dbus.FieldMember:    dbus.MakeVariant("PrepareForShutdown"),
			dbus.FieldSender:    dbus.MakeVariant("org.freedesktop.login1"),
			dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(true)),
		}, Body: []any{begins}}, nil))
	}
	return errors.Join(errs...)
}

// serve authenticates a client and handles its calls until it disconnects.
func (c *client) serve() error {
	in := bufio.NewReader(c.conn)
	if _, err := in.ReadByte(); err != nil { // the initial null byte
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := "ERROR\r\n"
		switch word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "AUTH":
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
			if !strings.Contains(line, "EXTERNAL") {
				answer = "REJECTED EXTERNAL\r\n"
			}
		case "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD\r\n"
		case "BEGIN":
			return c.answer(in)
		}
		if _, err := io.WriteString(c.conn, answer); err != nil {
			return err
		}
	}
}

func (c *client) answer(in io.Reader) error {
	for {
		msg, err := dbus.DecodeMessage(in)
		if err != nil {
			return err
		}
		if msg.Type != dbus.TypeMethodCall {
			continue
		}
		member, _ := msg.Headers[dbus.FieldMember].Value().(string)
		reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
		}}
		var fd *os.File
		switch member {
		case "Hello":
			reply.Body = []any{":1.1"}
		case "AddMatch", "RemoveMatch":
		case "Get":
			c.bus.mu.Lock()
			reply.Body = []any{dbus.MakeVariant(uint64(c.bus.delay / time.Microsecond))}
			c.bus.mu.Unlock()
		case "KillUnit":
			c.bus.mu.Lock()
			c.bus.delay = c.bus.reload()
			c.bus.mu.Unlock()
		case "Inhibit":
			if fd, err = c.bus.lock(); err != nil {
				return err
			}
			reply.Body = []any{dbus.UnixFD(0)}
			reply.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
		default:
			reply.Type = dbus.TypeError
			reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.freedesktop.DBus.Error.UnknownMethod")
			reply.Body = []any{fmt.Sprintf("no method %s", member)}
		}
		if len(reply.Body) > 0 {
			reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
		}
		err = c.send(reply, fd)
		if fd != nil {
			fd.Close()
		}
		if err != nil {
			return err
		}
	}
}

// lock returns one end of a pipe. Closing it releases the lock.
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

// send writes a message, with a file descriptor if fd is not nil.
func (c *client) send(msg *dbus.Message, fd *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	var raw strings.Builder
	if err := msg.EncodeTo(&raw, binary.LittleEndian); err != nil {
		return err
	}
	data := []byte(raw.String())
	// The library only sets the serial of messages that it sends itself.
	binary.LittleEndian.PutUint32(data[8:], c.serial)
	var rights []byte
	if fd != nil {
		rights = unix.UnixRights(int(fd.Fd()))
	}
	_, _, err := c.conn.WriteMsgUnix(data, rights, nil)
	return err
}
