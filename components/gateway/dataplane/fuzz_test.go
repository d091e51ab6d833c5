package dataplane

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
)

// hello returns the ClientHello of a connection to a server.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		_ = tls.Client(b, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).Handshake()
		b.Close()
	}()
	buffer := make([]byte, 16<<10)
	n, err := a.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return buffer[:n]
}

// slowly returns a reader that returns a byte at a time.
type slowly struct{ io.Reader }

func (s slowly) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), 1)]) }

func TestServerName(t *testing.T) {
	for _, name := range []string{"a.example.com", ""} {
		data := hello(t, name)
		got, seen, err := readServerName(slowly{bytes.NewReader(append(data, "more"...))})
		if err != nil || got != name || !bytes.HasPrefix(append(data, "more"...), seen) {
			t.Errorf("%q: name %q, %v", name, got, err)
		}
	}
	if _, _, err := readServerName(strings.NewReader("GET / HTTP/1.1\r\n\r\n")); err == nil {
		t.Error("a request without TLS has a server name")
	}
}

// FuzzServerName checks that what readServerName has read is what the client has sent.
func FuzzServerName(f *testing.F) {
	f.Add(hello(f, "a.example.com"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, seen, err := readServerName(bytes.NewReader(data))
		if err == nil && !bytes.HasPrefix(data, seen) {
			t.Errorf("%q is not a prefix of %q", seen, data)
		}
	})
}

// FuzzProxyHeader checks that no more than the header is consumed.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.7 10.0.0.1 1234 80\r\nrest"))
	f.Add([]byte("PROXY UNKNOWN\r\n"))
	f.Add([]byte(proxySignature + "\x21\x11\x00\x0c\xc0\x00\x02\x07\x0a\x00\x00\x01\x04\xd2\x00\x50rest"))
	f.Add([]byte(proxySignature + "\x20\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		address, err := readProxyHeader(r)
		if err != nil {
			return
		}
		rest, err := io.ReadAll(r)
		if err != nil || !bytes.HasSuffix(data, rest) || len(rest) == len(data) {
			t.Errorf("address %v, rest %q of %q", address, rest, data)
		}
	})
}
