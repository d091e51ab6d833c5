// Package dbus is a minimal D-Bus client: it calls methods of services on the system bus and
// receives their signals. The common Go library looks up methods by name at run time, which
// prevents the linker from removing unused methods of any type in the program.
//
// https://dbus.freedesktop.org/doc/dbus-specification.html
package dbus

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed is wrapped by the errors of calls on a connection that is closed or was lost.
var ErrClosed = errors.New("bus connection is closed")

// SystemBus returns the D-Bus address of the system bus: $DBUS_SYSTEM_BUS_ADDRESS, or the usual
// socket.
func SystemBus() string {
	if at := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"); at != "" {
		return at
	}
	return "unix:path=/var/run/dbus/system_bus_socket"
}

// Exists reports whether the machine has a system bus, that is, its socket exists.
func Exists() bool {
	path, err := socketPath(SystemBus())
	if err != nil {
		return false
	}
	if strings.HasPrefix(path, "@") {
		return true // an abstract socket has no file
	}
	_, err = os.Stat(path)
	return err == nil
}

// socketPath returns the path of the first unix socket in a D-Bus address. The path of an abstract
// socket begins with "@". It returns an error if the address contains no unix socket.
func socketPath(address string) (string, error) {
	for one := range strings.SplitSeq(address, ";") {
		rest, ok := strings.CutPrefix(one, "unix:")
		if !ok {
			continue
		}
		for pair := range strings.SplitSeq(rest, ",") {
			switch key, value, _ := strings.Cut(pair, "="); key {
			case "path":
				return value, nil
			case "abstract":
				return "@" + value, nil
			}
		}
	}
	return "", fmt.Errorf("bus address %q is not the address of a unix socket", address)
}

// Call describes a method call: the bus name of the service, the object, and the method.
type Call struct {
	Destination, Path, Interface, Member string
	// Args are strings and int32s.
	Args []any
}

// Signal is a signal that was received from the bus. Body contains its arguments.
type Signal struct {
	Path, Interface, Member string
	Body                    []any
}

// Conn is a connection to a bus. Its methods are safe for concurrent use.
type Conn struct {
	conn    *net.UnixConn
	signals chan Signal
	done    chan struct{} // closed when the read loop has stopped

	write sync.Mutex // held while a message is written

	mu      sync.Mutex // guards the fields below
	serial  uint32
	waiting map[uint32]chan *message
	err     error // why the connection was closed
}

// Dial connects to the bus at a D-Bus address, authenticates as the user of this process and registers the connection
// at the bus. ctx limits only this, not the connection. The caller must close the connection.
func Dial(ctx context.Context, address string) (*Conn, error) {
	path, err := socketPath(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(*net.UnixConn)
	if !ok {
		raw.Close()
		return nil, errors.New("bus connection is not a unix socket")
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if err := authenticate(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("authenticating to the bus: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	c := &Conn{conn: conn, signals: make(chan Signal, 64), done: make(chan struct{}), waiting: map[uint32]chan *message{}}
	go c.read()
	if _, err := c.Call(ctx, bus("Hello")); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// bus returns the call of a method of the bus itself.
func bus(member string, args ...any) Call {
	return Call{Destination: "org.freedesktop.DBus", Path: "/org/freedesktop/DBus", Interface: "org.freedesktop.DBus", Member: member, Args: args}
}

// authenticate authenticates as the user of the process, which the kernel reports to the bus, and negotiates that
// messages may contain file descriptors. It returns an error if the bus refuses either.
func authenticate(conn *net.UnixConn) error {
	say := func(line, want string) error {
		if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
			return err
		}
		if want == "" {
			return nil
		}
		// Read one byte at a time, because the bytes after the line belong to messages.
		var answer strings.Builder
		for one := make([]byte, 1); ; {
			if _, err := conn.Read(one); err != nil {
				return err
			}
			if one[0] == '\n' {
				break
			}
			if answer.WriteByte(one[0]); answer.Len() > 1024 {
				return errors.New("response line is too long")
			}
		}
		if !strings.HasPrefix(answer.String(), want) {
			return fmt.Errorf("unexpected response %q", answer.String())
		}
		return nil
	}
	if err := say("\x00AUTH EXTERNAL "+hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid()))), "OK"); err != nil {
		return err
	}
	if err := say("NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD"); err != nil {
		return err
	}
	return say("BEGIN", "")
}

// Close closes the connection and waits until the goroutine that reads from it has stopped. Pending
// calls fail with ErrClosed.
func (c *Conn) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Signals returns the channel that receives the signals to which Match has subscribed. It is closed
// when the connection is closed or lost. Signals are dropped while the channel is full.
func (c *Conn) Signals() <-chan Signal { return c.signals }

// Match subscribes to the signals that match rule, a match rule of the D-Bus specification.
func (c *Conn) Match(ctx context.Context, rule string) error {
	_, err := c.Call(ctx, bus("AddMatch", rule))
	return err
}

// Call calls a method and returns the values of its reply: strings, numbers, bools, and *os.File
// for descriptors, which the caller must close. Variants are returned as the values that they
// contain. An error reply is returned as an error with the text of the called service.
func (c *Conn) Call(ctx context.Context, call Call) ([]any, error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.serial++
	serial := c.serial
	answer := make(chan *message, 1)
	c.waiting[serial] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, serial)
		c.mu.Unlock()
	}()
	raw, err := encodeCall(call, serial)
	if err != nil {
		return nil, err
	}
	c.write.Lock()
	_, err = c.conn.Write(raw)
	c.write.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, c.err
	case m := <-answer:
		if m.kind == kindError {
			text := m.errorName
			if len(m.body) > 0 {
				text = fmt.Sprint(m.body[0])
			}
			return nil, errors.New(text)
		}
		return m.body, nil
	}
}

// read receives messages until the connection is closed or a message is invalid. It passes replies to the waiting
// calls, and signals to the channel; a signal is lost if the channel is full. It ignores other messages.
func (c *Conn) read() {
	defer close(c.done)
	defer close(c.signals)
	in := &reader{conn: c.conn}
	defer in.drop()
	for {
		m, err := in.message()
		if err != nil {
			c.mu.Lock()
			c.err = fmt.Errorf("%w: %w", ErrClosed, err)
			c.mu.Unlock()
			c.conn.Close()
			return
		}
		switch m.kind {
		case kindReply, kindError:
			c.mu.Lock()
			answer := c.waiting[m.replyTo]
			delete(c.waiting, m.replyTo)
			c.mu.Unlock()
			if answer == nil {
				m.drop()
				continue
			}
			answer <- m
		case kindSignal:
			select {
			case c.signals <- Signal{Path: m.path, Interface: m.iface, Member: m.member, Body: m.body}:
			default:
			}
		default:
			m.drop()
		}
	}
}

// reader reads messages from the socket, and stores the file descriptors that accompany them until
// the message that they belong to is decoded.
type reader struct {
	conn *net.UnixConn
	fds  []int
}

// drop closes the descriptors that belong to no decoded message.
func (r *reader) drop() {
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	r.fds = nil
}

// Read implements io.Reader. It stores received file descriptors in r.fds. When the connection is closed, it returns
// io.EOF.
func (r *reader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(16*4))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(p, oob)
	if oobn > 0 {
		list, parseErr := unix.ParseSocketControlMessage(oob[:oobn])
		if parseErr == nil {
			for i := range list {
				if fds, err := unix.ParseUnixRights(&list[i]); err == nil {
					r.fds = append(r.fds, fds...)
				}
			}
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// message reads one message. It replaces handles in the message's body by the files that they refer
// to, and closes received descriptors that the body does not refer to.
func (r *reader) message() (*message, error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size, err := sizeOf(head)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, size)
	copy(raw, head)
	if _, err := io.ReadFull(r, raw[16:]); err != nil {
		return nil, err
	}
	m, err := decode(raw)
	if err != nil {
		return nil, err
	}
	if m.fds > len(r.fds) {
		return nil, errors.New("message without its file descriptors")
	}
	mine := r.fds[:m.fds]
	r.fds = r.fds[m.fds:]
	used := make([]bool, len(mine))
	for i, v := range m.body {
		if h, ok := v.(handle); ok {
			if int(h) >= len(mine) || used[h] {
				return nil, errors.New("message refers to a missing file descriptor")
			}
			used[h] = true
			unix.CloseOnExec(mine[h])
			m.body[i] = os.NewFile(uintptr(mine[h]), "dbus")
		}
	}
	for i, fd := range mine {
		if !used[i] {
			_ = unix.Close(fd)
		}
	}
	return m, nil
}
