package dataplane

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// proxyListener accepts connections that begin with a PROXY protocol header, version 1 or 2. The remote address of a
// connection is the address in the header.
//
// https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
type proxyListener struct {
	net.Listener
	timeout time.Duration
}

// newProxyListener returns a listener that waits for the header for the timeout at most; zero means no limit.
func newProxyListener(l net.Listener, timeout time.Duration) net.Listener {
	return &proxyListener{l, timeout}
}

// Accept implements net.Listener. The header is read by the first call of Read or RemoteAddr of the connection, so that a
// slow client does not delay others.
func (l *proxyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &proxyConn{Conn: conn, reader: bufio.NewReader(conn), timeout: l.timeout}, nil
}

// proxyConn is a connection with a PROXY protocol header.
type proxyConn struct {
	net.Conn
	reader  *bufio.Reader
	timeout time.Duration
	once    sync.Once
	remote  net.Addr // nil if the header contains no address
	err     error    // of the header
}

// readHeader reads the header once. If it is invalid, the connection is closed.
func (c *proxyConn) readHeader() {
	c.once.Do(func() {
		if c.timeout > 0 {
			_ = c.SetReadDeadline(time.Now().Add(c.timeout)) // an error also affects the read
			defer func() { _ = c.SetReadDeadline(time.Time{}) }()
		}
		remote, err := readProxyHeader(c.reader)
		if err != nil {
			c.err = fmt.Errorf("reading PROXY protocol header: %w", err)
			c.Conn.Close()
			return
		}
		if remote.IsValid() {
			c.remote = net.TCPAddrFromAddrPort(remote)
		}
	})
}

// Read implements net.Conn.
func (c *proxyConn) Read(p []byte) (int, error) {
	if c.readHeader(); c.err != nil {
		return 0, c.err
	}
	return c.reader.Read(p)
}

// RemoteAddr implements net.Conn. It returns the address of the client in the PROXY header, or that of the load
// balancer if the header has none.
func (c *proxyConn) RemoteAddr() net.Addr {
	if c.readHeader(); c.remote != nil {
		return c.remote
	}
	return c.Conn.RemoteAddr()
}

// CloseWrite closes the write side of the connection.
func (c *proxyConn) CloseWrite() error { return closeWrite(c.Conn) }

// proxySignature is the beginning of a header of version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// Limits of the PROXY protocol.
const (
	maxProxyV1 = 107  // bytes of a header of version 1, with the line end
	maxProxyV2 = 4096 // bytes after the fixed part of a header of version 2; the specification allows 64 KiB
)

var errProxyHeader = errors.New("invalid header")

// readProxyHeader reads a PROXY protocol header and returns the address of the client. The address is invalid if the
// header contains none, as those of health checks do.
func readProxyHeader(r *bufio.Reader) (netip.AddrPort, error) {
	first, err := r.Peek(1)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if first[0] == 'P' {
		return readProxyV1(r)
	}
	return readProxyV2(r)
}

// readProxyV1 reads a header such as "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443" and returns the address of the client.
// The address is invalid, without an error, if the header has none ("PROXY UNKNOWN").
func readProxyV1(r *bufio.Reader) (netip.AddrPort, error) {
	var line []byte
	for !bytes.HasSuffix(line, []byte("\r\n")) {
		if len(line) >= maxProxyV1 {
			return netip.AddrPort{}, errProxyHeader
		}
		b, err := r.ReadByte()
		if err != nil {
			return netip.AddrPort{}, err
		}
		line = append(line, b)
	}
	fields := strings.Split(string(line[:len(line)-2]), " ")
	if len(fields) < 2 || fields[0] != "PROXY" {
		return netip.AddrPort{}, errProxyHeader
	}
	if fields[1] == "UNKNOWN" {
		return netip.AddrPort{}, nil
	}
	if len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6" {
		return netip.AddrPort{}, errProxyHeader
	}
	address, err := netip.ParseAddrPort(net.JoinHostPort(fields[2], fields[4]))
	if err != nil || address.Addr().Is4() != (fields[1] == "TCP4") || address.Addr().Zone() != "" {
		return netip.AddrPort{}, errProxyHeader
	}
	return address, nil
}

// readProxyV2 reads a binary header and returns the address of the client. The address is invalid, without an error, if
// the load balancer has connected for itself (LOCAL) or for a client without IP address.
func readProxyV2(r *bufio.Reader) (netip.AddrPort, error) {
	var fixed [16]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return netip.AddrPort{}, err
	}
	length := int(binary.BigEndian.Uint16(fixed[14:]))
	if string(fixed[:12]) != proxySignature || fixed[12]>>4 != 2 || length > maxProxyV2 {
		return netip.AddrPort{}, errProxyHeader
	}
	rest := make([]byte, length)
	if _, err := io.ReadFull(r, rest); err != nil {
		return netip.AddrPort{}, err
	}
	switch fixed[12] & 0xf {
	case 0: // LOCAL: the load balancer itself connects
		return netip.AddrPort{}, nil
	case 1: // PROXY
	default:
		return netip.AddrPort{}, errProxyHeader
	}
	size := 0 // of an address
	switch fixed[13] >> 4 {
	case 0, 3: // unspecified, unix
		return netip.AddrPort{}, nil
	case 1:
		size = 4
	case 2:
		size = 16
	}
	if size == 0 || len(rest) < 2*size+4 {
		return netip.AddrPort{}, errProxyHeader
	}
	address, ok := netip.AddrFromSlice(rest[:size])
	if !ok {
		return netip.AddrPort{}, errProxyHeader
	}
	return netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(rest[2*size:])), nil
}
