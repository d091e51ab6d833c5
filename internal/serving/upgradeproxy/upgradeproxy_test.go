package upgradeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// closedBackend is a backend that has closed its connection while some of its data is still unread: writes
// to it fail, and its data becomes available after two failed writes.
type closedBackend struct {
	net.Conn // nil: other methods are not called

	said   io.Reader
	asked  sync.Once
	failed chan struct{} // receives a value for each failed write
	over   chan struct{}
	gone   sync.Once
}

func (l *closedBackend) Write(p []byte) (int, error) {
	first := false
	l.asked.Do(func() { first = true })
	if first {
		return len(p), nil
	}
	select {
	case l.failed <- struct{}{}:
	case <-l.over:
	}
	return 0, syscall.EPIPE
}

func (l *closedBackend) Read(p []byte) (int, error) {
	n, err := l.said.Read(p)
	if n == 0 && err != nil {
		return 0, err
	}
	return n, nil
}

func (l *closedBackend) Close() error {
	l.gone.Do(func() { close(l.over) })
	return nil
}

func (l *closedBackend) SetReadDeadline(time.Time) error { return nil }

// after reads from r after it has received n values from ch, and reads nothing if over is closed
// before.
type after struct {
	io.Reader
	ch   <-chan struct{}
	over <-chan struct{}
	n    int
}

func (a *after) Read(p []byte) (int, error) {
	for ; a.n > 0; a.n-- {
		select {
		case <-a.ch:
		case <-a.over:
			return 0, net.ErrClosed
		}
	}
	return a.Reader.Read(p)
}

type failing struct{ t *testing.T }

func (f failing) Error(_ http.ResponseWriter, _ *http.Request, err error) { f.t.Error(err) }

// TestDataAfterBackendClose closes a backend while the client is writing, and checks that all of
// its data reaches the client.
func TestDataAfterBackendClose(t *testing.T) {
	failed, over := make(chan struct{}), make(chan struct{})
	backend := &closedBackend{failed: failed, over: over, said: io.MultiReader(
		strings.NewReader("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n"),
		&after{Reader: strings.NewReader("last words"), ch: failed, over: over, n: 2},
	)}
	rt := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return backend, nil }}
	server := httptest.NewServer(NewHandler(&url.URL{Scheme: "http", Host: "backend"}, rt, false, true, failing{t}))
	defer server.Close()

	client, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if _, err := client.Write([]byte("x")); err != nil {
				return
			}
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	got, err := io.ReadAll(client)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(got), "\r\n\r\nlast words") {
		t.Errorf("the client has read %q", got)
	}
}

// TestUnreachable checks the error for a backend that refuses connections.
func TestUnreachable(t *testing.T) {
	refused := errors.New("connection refused")
	rt := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}
	var got error
	h := NewHandler(&url.URL{Scheme: "https", Host: "backend"}, rt, false, true, responder(func(err error) { got = err }))
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "words")
	h.ServeHTTP(httptest.NewRecorder(), req)
	if got == nil || !strings.Contains(got.Error(), refused.Error()) {
		t.Errorf("got %v, want %v", got, refused)
	}
}

type responder func(error)

func (r responder) Error(_ http.ResponseWriter, _ *http.Request, err error) { r(err) }
