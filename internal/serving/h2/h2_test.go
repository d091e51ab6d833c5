package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// testTimeout is the timeout for events that happen quickly.
const testTimeout = time.Minute

type testServer struct {
	*http.Server
	url    string
	addr   string
	client *http.Client
	tls    *tls.Config
}

// serve serves handler until the test is finished.
func serve(t testing.TB, handler http.HandlerFunc, cfg Config, change func(*http.Server)) *testServer {
	t.Helper()
	made := httptest.NewTLSServer(nil) // used for its certificate
	defer made.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{
		Server: &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: made.TLS.Certificates}},
		url:    "https://" + l.Addr().String(), addr: l.Addr().String(),
		tls: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}},
	}
	if change != nil {
		change(s.Server)
	}
	Configure(s.Server, cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.ServeTLS(Listen(l), "", "")
	}()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.client = &http.Client{Transport: transport, Timeout: testTimeout}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		s.Close()
		<-ended
	})
	return s
}

func (s *testServer) do(t testing.TB, method, path string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, s.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.ProtoMajor != 2 {
		t.Fatalf("answered by %s", resp.Proto)
	}
	return resp, string(data)
}

func TestValidationMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 300_000)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body after 204: %v", err)
			}
		case "/silent":
		case "/short":
			w.Header().Set("X-Some", "thing")
			fmt.Fprint(w, "hello")
		case "/long":
			w.Header().Set("Content-Length", strconv.Itoa(len(long)))
			fmt.Fprint(w, long)
		case "/pieces":
			for rest := long; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(40_000))
				if _, err := io.WriteString(w, rest[:n]); err != nil {
					t.Error(err)
				}
				if rest = rest[n:]; rand.IntN(20) == 0 {
					w.(http.Flusher).Flush()
				}
			}
		case "/toolong":
			w.Header().Set("Content-Length", "2")
			if _, err := w.Write([]byte("xyz")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("more than the declared length: %v", err)
			}
			fmt.Fprint(w, "xy")
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(w, "body")
			w.Header().Set("X-Sum", "7")
			w.Header().Set(http.TrailerPrefix+"X-Late", "8")
		case "/echo":
			w.Header().Set("X-Agent", r.Header.Get("User-Agent"))
			w.Header().Set("X-Length", strconv.FormatInt(r.ContentLength, 10))
			_, _ = io.Copy(w, r.Body)
		case "/multiple":
			w.Header()["Warning"] = []string{"one", "two"}
			w.Header().Set("Bad", "with\nnewline")
			w.Header().Set("Connection", "keep-alive")
			w.WriteHeader(http.StatusTeapot)
		}
	}, Config{}, nil)

	for _, c := range []struct {
		method, path, want string
		status             int
	}{
		{"GET", "/none", "", 204}, {"GET", "/silent", "", 200}, {"GET", "/short", "hello", 200}, {"HEAD", "/short", "", 200},
		{"GET", "/long", long, 200}, {"GET", "/pieces", long, 200}, {"GET", "/toolong", "xy", 200}, {"GET", "/trailer", "body", 200},
		{"GET", "/multiple", "", 418},
	} {
		resp, got := s.do(t, c.method, c.path, nil)
		if got != c.want || resp.StatusCode != c.status {
			t.Errorf("%s %s: %d and %d bytes, want %d and %d", c.method, c.path, resp.StatusCode, len(got), c.status, len(c.want))
		}
		if resp.Header.Get("Date") == "" {
			t.Errorf("%s %s has no date", c.method, c.path)
		}
		switch c.path {
		case "/short":
			if resp.ContentLength != 5 && c.method == "GET" || resp.Header.Get("X-Some") != "thing" || resp.Header.Get("Content-Type") == "" && c.method == "GET" {
				t.Errorf("header %v, length %d", resp.Header, resp.ContentLength)
			}
		case "/trailer":
			if resp.Trailer.Get("X-Sum") != "7" || resp.Trailer.Get("X-Late") != "8" {
				t.Errorf("trailer %v", resp.Trailer)
			}
		case "/multiple":
			if len(resp.Header["Warning"]) != 2 || resp.Header.Get("Bad") != "" {
				t.Errorf("header %v", resp.Header)
			}
		}
	}
	for _, body := range []string{"", "x", long} {
		resp, got := s.do(t, "POST", "/echo", strings.NewReader(body), "User-Agent: me", "Expect: 100-continue")
		if got != body || resp.Header.Get("X-Agent") != "me" || resp.Header.Get("X-Length") != strconv.Itoa(len(body)) {
			t.Errorf("echo of %d bytes: %d, %v", len(body), len(got), resp.Header)
		}
		if _, got = s.do(t, "POST", "/echo", io.MultiReader(strings.NewReader(body))); got != body {
			t.Errorf("echo of %d bytes of unknown length: %d", len(body), len(got))
		}
	}
}

// TestConcurrentRequests sends many concurrent requests on one connection.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		for i := range n {
			fmt.Fprintf(w, "%d,", i)
			if i%100 == 0 {
				w.(http.Flusher).Flush()
			}
		}
		_, _ = io.Copy(w, r.Body)
	}, Config{}, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			n := i * i / 40
			var want strings.Builder
			for i := range n {
				fmt.Fprintf(&want, "%d,", i)
			}
			body := strings.Repeat("b", i*100)
			if _, got := s.do(t, "PUT", "/?n="+strconv.Itoa(n), strings.NewReader(body)); got != want.String()+body {
				t.Errorf("%d: %d bytes, want %d", n, len(got), want.Len()+len(body))
			}
		})
	}
	wg.Wait()
}

// TestCancel checks that a client that cancels its request cancels the context of the handler.
func TestCancel(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 2)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		_, err := w.Write(make([]byte, 1<<20))
		ended <- err
	}, Config{}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "GET", s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	if err := <-ended; err == nil {
		t.Error("wrote to a canceled stream")
	}
	// Closing the connection has the same effect.
	raw := s.dial(t)
	raw.request(1, "/", true)
	raw.expect(http2.FrameHeaders)
	raw.Close()
	if err := <-ended; err == nil {
		t.Error("wrote to a closed connection")
	}
}

// TestPanic checks that a panic in a handler closes only its stream.
func TestPanic(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "fine")
	}, Config{}, nil)
	if resp, err := s.client.Get(s.url + "/abort"); err == nil {
		resp.Body.Close()
		t.Error("a handler that panicked sent a response")
	}
	if _, got := s.do(t, "GET", "/", nil); got != "fine" {
		t.Error(got)
	}
}

// TestShutdown checks that active requests are completed before the connection is closed.
func TestShutdown(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-end
		fmt.Fprint(w, "answered")
	}, Config{}, nil)
	done := make(chan error, 1)
	go func() {
		<-begun
		time.AfterFunc(50*time.Millisecond, func() { close(end) })
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		done <- s.Shutdown(ctx)
	}()
	if _, got := s.do(t, "GET", "/", nil); got != "answered" {
		t.Error(got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDeadlines checks that deadlines interrupt waiting for a body and for window space.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	got := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		switch r.URL.Path {
		case "/read":
			_ = rc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
		case "/write":
			_ = rc.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := w.Write(make([]byte, 10<<20))
			got <- err
		case "/later":
			time.AfterFunc(20*time.Millisecond, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })
			_, err := w.Write(make([]byte, 10<<20))
			got <- err
		}
	}, Config{}, nil)
	for i, path := range []string{"/read", "/write", "/later"} {
		raw := s.dial(t)
		raw.request(1, path, path != "/read")
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d %s: %v", i, path, err)
		}
		if path != "/read" {
			if f := raw.expect(http2.FrameRSTStream).(*http2.RSTStreamFrame); f.ErrCode != http2.ErrCodeInternal {
				t.Error(f)
			}
		}
	}
}

// TestIdle checks that idle and dead connections are closed.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, Config{}, func(s *http.Server) { s.IdleTimeout = time.Second })
	raw := s.dial(t)
	raw.expect(http2.FrameGoAway)
	raw.readToEnd()

	s = serve(t, func(http.ResponseWriter, *http.Request) {}, Config{PingAfter: 500 * time.Millisecond, PingTimeout: 500 * time.Millisecond}, nil)
	raw = s.dial(t)
	raw.expect(http2.FramePing)
	raw.readToEnd()
}

// TestConnectionClose checks the "Connection: close" response header, with which a handler of
// net/http closes its connection.
func TestConnectionClose(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }, Config{}, nil)
	raw := s.dial(t)
	raw.request(1, "/", true)
	raw.expect(http2.FrameHeaders)
	raw.expect(http2.FrameGoAway)
	raw.readToEnd()
}
