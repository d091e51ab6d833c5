package rawconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"hyperkube/internal/testing/testport"
	"hyperkube/internal/testing/testwait"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	var pace MonitorWaker
	l, err := net.Listen("tcp", testport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := pace.Listen(l).Accept()
		accepted <- c
	}()
	client, err = pace.Dialer(time.Minute)(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	if server == nil {
		t.Fatal("nothing was accepted")
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return server, client
}

// TestFullDuplex checks that all data arrives in order in both directions, even when the kernel's
// buffers are full.
func TestFullDuplex(t *testing.T) {
	server, client := pair(t)
	data := make([]byte, 32<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	var wg sync.WaitGroup
	for _, ends := range [][2]net.Conn{{server, client}, {client, server}} {
		wg.Go(func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(1<<20))
				if written, err := ends[0].Write(rest[:n]); written != n || err != nil {
					t.Errorf("wrote %d of %d: %v", written, n, err)
					return
				}
				rest = rest[n:]
			}
			if err := ends[0].(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(ends[1])
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes of %d: %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
}

func TestDeadlines(t *testing.T) {
	server, client := pair(t)
	_ = server.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading past the deadline: %v", err)
	}
	n, err := server.Write(make([]byte, 256<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 256<<20 {
		t.Errorf("wrote %d bytes past the deadline: %v", n, err)
	}
	_ = server.SetDeadline(time.Time{})
	go func() { _, _ = client.Write([]byte("x")) }()
	if n, err := server.Read(make([]byte, 4)); n != 1 || err != nil {
		t.Errorf("reading after the deadline was taken off: %d, %v", n, err)
	}
}

// TestClose checks that Close unblocks reads and writes.
func TestClose(t *testing.T) {
	server, client := pair(t)
	failed := make(chan error, 2)
	go func() {
		_, err := server.Read(make([]byte, 1))
		failed <- err
	}()
	go func() {
		_, err := server.Write(make([]byte, 256<<20))
		failed <- err
	}()
	time.AfterFunc(10*time.Millisecond, func() { server.Close() })
	for range 2 {
		select {
		case err := <-failed:
			if err == nil {
				t.Error("no error from a closed connection")
			}
		case <-time.After(time.Minute):
			t.Fatal("still waiting on a closed connection")
		}
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing to a closed connection: %v", err)
	}
	_, _ = io.Copy(io.Discard, client)
}

// TestTimerStops checks that the timer stops when no connection is used.
func TestTimerStops(t *testing.T) {
	var p MonitorWaker
	p.use()
	if !p.running.Load() {
		t.Fatal("no timer while in use")
	}
	testwait.Until(t, "the timer to stop", func() bool { return !p.running.Load() })
	p.use()
	if !p.running.Load() {
		t.Error("no timer when used again")
	}
}
