package gracefulclose

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"
)

// TestLinger closes connections whose peers continue to write and read slowly, and checks that the
// peers receive all data.
func TestLinger(t *testing.T) {
	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	defer pair.Close()
	server := pair.TLS
	for _, c := range []struct {
		name   string
		listen func(net.Listener) net.Listener
		dial   func(address string) (net.Conn, error)
	}{
		{"TCP", func(l net.Listener) net.Listener { return l }, func(a string) (net.Conn, error) { return net.Dial("tcp", a) }},
		{"TLS", func(l net.Listener) net.Listener { return tls.NewListener(l, server) }, func(a string) (net.Conn, error) {
			return tls.Dial("tcp", a, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test's own server
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := Listener(c.listen(inner))
			defer l.Close()
			said := bytes.Repeat([]byte("word "), 2<<20)
			served := make(chan error, 1)
			go func() { served <- say(l, said) }()

			client, err := c.dial(inner.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			go func() {
				for err := error(nil); err == nil; {
					_, err = client.Write(make([]byte, 512))
				}
			}()
			got, err := io.ReadAll(slow{client})
			if err != nil {
				t.Errorf("after %d of %d bytes: %v", len(got), len(said), err)
			} else if !bytes.Equal(got, said) {
				t.Errorf("got %d bytes, want %d", len(got), len(said))
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

// say accepts one connection, writes words to it and closes it.
func say(l net.Listener, words []byte) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(words)
	return err
}

// slow reads a few bytes at a time.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Microsecond)
	return s.Reader.Read(p[:min(len(p), 32<<10)])
}

// TestCloseTimeout closes a connection whose peer neither reads nor closes, and checks that the
// connection is closed in the end and a blocked writer returns.
func TestCloseTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := Listener(l).Accept()
	if err != nil {
		t.Fatal(err)
	}
	stuck := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = conn.Write(make([]byte, 64<<10))
		}
		stuck <- err
	}()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(time.Minute):
		t.Error("a writer is still blocked")
	}
}
