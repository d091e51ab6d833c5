// Package testbus implements a system bus for tests. One service on it, which the test implements, handles all
// calls.
package testbus

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

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Call is a method call of a D-Bus client: the interface, the method and its arguments.
type Call struct {
	Interface, Member string
	Args              []any
}

// Reply is the successful reply to a method call of a D-Bus client.
type Reply struct {
	Body []any
	// File is sent as the file descriptor with index 0, and closed. Nil sends none.
	File *os.File
}

// Error is returned by a Handler to reply with an error. The value is its text.
type Error string

// Error implements error.
func (e Error) Error() string { return string(e) }

// Handler handles a method call of a client. It returns an Error for an error reply, and another
// error to close the connection. It must be safe for concurrent use.
type Handler func(Call) (Reply, error)

// Bus is a D-Bus message bus for tests. It accepts clients until it is closed. Its methods are safe for concurrent
// use.
type Bus struct {
	listener *net.UnixListener
	handler  Handler
	wait     sync.WaitGroup

	mu      sync.Mutex // guards clients
	clients map[*client]bool
}

// client is the bus's side of a connection. serial is the serial number of the last message that was sent.
type client struct {
	bus    *Bus
	conn   *net.UnixConn
	mu     sync.Mutex // held while a message is written
	serial uint32
}

// Listen creates a bus on a unix socket at path, to which $DBUS_SYSTEM_BUS_ADDRESS must point.
// handler handles the calls of clients. The caller must close the bus.
func Listen(path string, handler Handler) (*Bus, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	b := &Bus{listener: l, handler: handler, clients: map[*client]bool{}}
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

// Close closes the bus and all connections, and waits until their goroutines have stopped.
func (b *Bus) Close() {
	_ = b.listener.Close()
	b.Drop()
	b.wait.Wait()
}

// Drop closes all connections, as if the bus was restarted. Clients can connect again.
func (b *Bus) Drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.clients {
		c.conn.Close()
	}
}

// Signal sends a signal of the object at path to all clients.
func (b *Bus) Signal(path, iface, member string, body ...any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	headers := map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath(path)),
		dbus.FieldInterface: dbus.MakeVariant(iface),
		dbus.FieldMember:    dbus.MakeVariant(member),
		dbus.FieldSender:    dbus.MakeVariant(":1.0"),
	}
	if len(body) > 0 {
		headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	var errs []error
	for c := range b.clients {
		errs = append(errs, c.send(&dbus.Message{Type: dbus.TypeSignal, Headers: headers, Body: body}, nil))
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

// answer handles the calls of a client one after the other, until the client disconnects or a handler returns an error
// other than an Error. Other messages are ignored.
func (c *client) answer(in io.Reader) error {
	for {
		msg, err := dbus.DecodeMessage(in)
		if err != nil {
			return err
		}
		if msg.Type != dbus.TypeMethodCall {
			continue
		}
		call := Call{Args: msg.Body}
		call.Interface, _ = msg.Headers[dbus.FieldInterface].Value().(string)
		call.Member, _ = msg.Headers[dbus.FieldMember].Value().(string)
		reply, err := c.bus.handle(call)
		out := &dbus.Message{Type: dbus.TypeMethodReply, Body: reply.Body, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
		}}
		var text Error
		switch {
		case errors.As(err, &text):
			out.Type, out.Body = dbus.TypeError, []any{string(text)}
			out.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.example.Error")
		case err != nil:
			return err
		}
		if reply.File != nil {
			out.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
		}
		if len(out.Body) > 0 {
			out.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(out.Body...))
		}
		err = c.send(out, reply.File)
		if reply.File != nil {
			reply.File.Close()
		}
		if err != nil {
			return err
		}
	}
}

// handle handles the calls that are addressed to the bus itself, and passes others to the handler
// of the test.
func (b *Bus) handle(call Call) (Reply, error) {
	switch call.Member {
	case "Hello":
		return Reply{Body: []any{":1.1"}}, nil
	case "AddMatch", "RemoveMatch":
		return Reply{}, nil
	}
	return b.handler(call)
}

// NoMethod returns the error with which a Handler rejects a call of a method that does not exist.
func NoMethod(call Call) error { return Error(fmt.Sprintf("no method %s", call.Member)) }

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
