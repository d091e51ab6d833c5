package h2

import (
	"bytes"
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
	"golang.org/x/net/http2/hpack"
)

// patience is for what should happen soon.
const patience = time.Minute

type testServer struct {
	*http.Server
	url    string
	addr   string
	client *http.Client
	tls    *tls.Config
}

// serve serves handler until the end of the test.
func serve(t testing.TB, handler http.HandlerFunc, cfg Config, change func(*http.Server)) *testServer {
	t.Helper()
	made := httptest.NewTLSServer(nil) // for its certificate
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
	s.client = &http.Client{Transport: transport, Timeout: patience}
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

func TestAnswers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 300_000)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body behind 204: %v", err)
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

// TestTogether has many requests share a connection.
func TestTogether(t *testing.T) {
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

// TestCancel: a client that goes away ends its handler.
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
		t.Error("wrote to a client that has gone")
	}
	// And so does the end of the connection.
	raw := s.dial(t)
	raw.request(1, "/", true)
	raw.expect(http2.FrameHeaders)
	raw.Close()
	if err := <-ended; err == nil {
		t.Error("wrote to a connection that has gone")
	}
}

// TestPanic: handlers that panic end their stream alone.
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
		t.Error("a handler that panicked answered")
	}
	if _, got := s.do(t, "GET", "/", nil); got != "fine" {
		t.Error(got)
	}
}

// TestShutdown: requests under way are answered, and the connection ends.
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
		ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// TestDeadlines: waiting for a body or for room ends when it is to.
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

// TestIdle: connections that nobody uses, and those that are dead, end.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, Config{}, func(s *http.Server) { s.IdleTimeout = time.Second })
	raw := s.dial(t)
	raw.expect(http2.FrameGoAway)
	raw.end()

	s = serve(t, func(http.ResponseWriter, *http.Request) {}, Config{PingAfter: 500 * time.Millisecond, PingTimeout: 500 * time.Millisecond}, nil)
	raw = s.dial(t)
	raw.expect(http2.FramePing)
	raw.end()
}

// TestConnectionClose is net/http's way of a handler to end its connection.
func TestConnectionClose(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }, Config{}, nil)
	raw := s.dial(t)
	raw.request(1, "/", true)
	raw.expect(http2.FrameHeaders)
	raw.expect(http2.FrameGoAway)
	raw.end()
}

// rawClient speaks in frames.
type rawClient struct {
	t testing.TB
	net.Conn
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func (s *testServer) dial(t testing.TB) *rawClient {
	t.Helper()
	c, err := tls.Dial("tcp", s.addr, s.tls)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	r := &rawClient{t: t, Conn: c, Framer: http2.NewFramer(c, c)}
	r.encoder = hpack.NewEncoder(&r.block)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	_ = r.WriteSettings()
	return r
}

func (r *rawClient) headers(id uint32, end bool, fields ...string) {
	r.t.Helper()
	r.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = r.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.block.Bytes(), EndStream: end, EndHeaders: true})
}

func (r *rawClient) request(id uint32, path string, end bool) {
	r.t.Helper()
	r.headers(id, end, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", path)
}

// expect reads up to a frame of a kind.
func (r *rawClient) expect(kind http2.FrameType) http2.Frame {
	r.t.Helper()
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.t.Fatalf("no %v: %v", kind, err)
		}
		if f.Header().Type == kind {
			return f
		}
	}
}

// end reads up to the end of the connection.
func (r *rawClient) end() {
	r.t.Helper()
	for {
		if _, err := r.ReadFrame(); err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				r.t.Error("the connection does not end")
			}
			return
		}
	}
}

// TestErrors is what clients do wrong: code is that of the stream's end, or of
// the connection's when conn.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	}, Config{MaxStreams: 3}, nil)
	for _, c := range []struct {
		name string
		do   func(r *rawClient)
		code http2.ErrCode
		conn bool
	}{
		{name: "even stream", do: func(r *rawClient) { r.request(2, "/", true) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "stream goes down", do: func(r *rawClient) { r.request(5, "/wait", true); r.request(3, "/", false) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "data on idle", do: func(r *rawClient) { _ = r.WriteData(1, true, nil) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "reset of idle", do: func(r *rawClient) { _ = r.WriteRSTStream(1, http2.ErrCodeCancel) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "window of idle", do: func(r *rawClient) { _ = r.WriteWindowUpdate(1, 1) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "window too large", do: func(r *rawClient) { _ = r.WriteWindowUpdate(0, 1<<31-1) }, code: http2.ErrCodeFlowControl, conn: true},
		{name: "window of a stream too large", do: func(r *rawClient) { r.request(1, "/wait", true); _ = r.WriteWindowUpdate(1, 1<<31-1) }, code: http2.ErrCodeFlowControl},
		{name: "no window", do: func(r *rawClient) {
			r.request(1, "/wait", true)
			_ = r.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4))
		}, code: http2.ErrCodeProtocol},
		{name: "no path", do: func(r *rawClient) { r.headers(1, true, ":method", "GET", ":scheme", "https") }, code: http2.ErrCodeProtocol},
		{name: "bad path", do: func(r *rawClient) { r.request(1, "no/slash", true) }, code: http2.ErrCodeProtocol},
		{name: "upper case", do: func(r *rawClient) {
			r.headers(1, true, ":method", "GET", ":scheme", "https", ":path", "/", "Upper", "x")
		}, code: http2.ErrCodeProtocol},
		{name: "user in authority", do: func(r *rawClient) {
			r.headers(1, true, ":method", "GET", ":scheme", "https", ":path", "/", ":authority", "a@b")
		}, code: http2.ErrCodeProtocol},
		{name: "extended connect", do: func(r *rawClient) {
			r.headers(1, true, ":method", "CONNECT", ":scheme", "https", ":path", "/", ":authority", "b", ":protocol", "websocket")
		}, code: http2.ErrCodeProtocol},
		{name: "length not a number", do: func(r *rawClient) {
			r.headers(1, false, ":method", "PUT", ":scheme", "https", ":path", "/", "content-length", "-1")
		}, code: http2.ErrCodeProtocol},
		{name: "longer than declared", do: func(r *rawClient) {
			r.headers(1, false, ":method", "PUT", ":scheme", "https", ":path", "/", "content-length", "1")
			_ = r.WriteData(1, true, []byte("xy"))
		}, code: http2.ErrCodeProtocol},
		{name: "shorter than declared", do: func(r *rawClient) {
			r.headers(1, false, ":method", "PUT", ":scheme", "https", ":path", "/", "content-length", "3")
			_ = r.WriteData(1, true, []byte("xy"))
		}, code: http2.ErrCodeProtocol},
		{name: "data behind the end", do: func(r *rawClient) { r.request(1, "/wait", true); _ = r.WriteData(1, true, nil) }, code: http2.ErrCodeStreamClosed},
		{name: "trailer behind the end", do: func(r *rawClient) { r.request(1, "/wait", true); r.headers(1, true, "x", "y") }, code: http2.ErrCodeStreamClosed},
		{name: "trailer that does not end", do: func(r *rawClient) { r.request(1, "/wait", false); r.headers(1, false, "x", "y") }, code: http2.ErrCodeProtocol},
		{name: "too many streams", do: func(r *rawClient) {
			for i := range uint32(4) {
				r.request(1+2*i, "/wait", true)
			}
		}, code: http2.ErrCodeRefusedStream},
		{name: "push", do: func(r *rawClient) {
			_ = r.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: []byte{0x82}, EndHeaders: true})
		}, code: http2.ErrCodeProtocol, conn: true},
		{name: "frame too large", do: func(r *rawClient) { _ = r.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, maxFrame+1)) }, code: http2.ErrCodeFrameSize, conn: true},
		{name: "bad compression", do: func(r *rawClient) {
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, code: http2.ErrCodeCompression, conn: true},
		{name: "settings twice", do: func(r *rawClient) {
			_ = r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15})
		}, code: http2.ErrCodeProtocol, conn: true},
		{name: "bad setting", do: func(r *rawClient) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "rapid reset", do: func(r *rawClient) {
			// One handler that does not notice is room enough for no more than
			// so many others.
			for i := range uint32(100_000) {
				r.request(1+2*i, "/wait", false)
				if r.WriteRSTStream(1+2*i, http2.ErrCodeCancel) != nil {
					return
				}
			}
			_ = r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})
		}, code: http2.ErrCodeProtocol, conn: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := s.dial(t)
			go func() { c.do(r) }()
			if c.conn {
				if f := r.expect(http2.FrameGoAway).(*http2.GoAwayFrame); f.ErrCode != c.code && c.name != "rapid reset" {
					t.Errorf("connection ended with %v, want %v", f.ErrCode, c.code)
				}
				r.end()
				return
			}
			if f := r.expect(http2.FrameRSTStream).(*http2.RSTStreamFrame); f.ErrCode != c.code {
				t.Errorf("stream ended with %v, want %v", f.ErrCode, c.code)
			}
		})
	}
}

// TestNotHTTP2 has clients say something else first.
func TestNotHTTP2(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, Config{}, nil)
	c, err := tls.Dial("tcp", s.addr, s.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n.....")
	if data, _ := io.ReadAll(c); len(data) != 0 {
		t.Errorf("was told %q", data)
	}
	r := s.dial(t)
	_ = r.WritePing(false, [8]byte{1})
	if f := r.expect(http2.FramePing); !f.(*http2.PingFrame).IsAck() {
		t.Error(f)
	}
}

// TestLargeHeader is refused with words, and leaves the connection.
func TestLargeHeader(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {}, Config{}, func(s *http.Server) { s.MaxHeaderBytes = 1000 })
	r := s.dial(t)
	r.headers(1, true, ":method", "GET", ":scheme", "https", ":path", "/", "x", strings.Repeat("y", 800), "z", strings.Repeat("y", 800))
	var f *http2.MetaHeadersFrame
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f = r.expect(http2.FrameHeaders).(*http2.MetaHeadersFrame)
	if f.PseudoValue("status") != "431" {
		t.Error(f)
	}
	r.headers(3, true, ":method", "GET", ":scheme", "https", ":path", "/", "connection", "close")
	if f = r.expect(http2.FrameHeaders).(*http2.MetaHeadersFrame); f.PseudoValue("status") != "400" {
		t.Error(f)
	}
}

// TestSmallWindows answers a client that takes little at a time, in frames and
// windows of all sizes, while settings change.
func TestSmallWindows(t *testing.T) {
	t.Parallel()
	want := make([]byte, 200_000)
	for i := range want {
		want[i] = byte(rand.Int())
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "x")
		for rest := want; len(rest) > 0; {
			n := min(len(rest), rand.IntN(30_000))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[n:]
		}
	}, Config{}, nil)
	r := s.dial(t)
	_ = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	r.request(1, "/", true)
	_ = r.WriteWindowUpdate(0, 1<<30)
	var got []byte
	_ = r.WriteWindowUpdate(1, 1)
	for {
		f := r.expect(http2.FrameData).(*http2.DataFrame)
		if got = append(got, f.Data()...); f.StreamEnded() {
			break
		}
		switch rand.IntN(3) {
		case 0:
			_ = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(len(got) + rand.IntN(100))})
		default:
		}
		_ = r.WriteWindowUpdate(1, 1+uint32(rand.IntN(20_000)))
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d; or others", len(got), len(want))
	}
}

// TestStalled: a client that reads nothing holds up neither memory nor, for
// ever, the server.
func TestStalled(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				failed <- err
				return
			}
		}
	}, Config{WriteTimeout: 200 * time.Millisecond}, nil)
	r := s.dial(t)
	_ = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	_ = r.WriteWindowUpdate(0, 1<<30)
	r.request(1, "/", true)
	select {
	case <-failed:
	case <-time.After(patience):
		t.Error("it is waited for without end")
	}
}

// TestRapidReset: who opens streams only to reset them, or to have them reset, is
// told to be calm and loses its connection; who does so now and then does not.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	}, Config{}, nil)
	for name, waste := range map[string]func(r *rawClient, id uint32){
		"reset":   func(r *rawClient, id uint32) { _ = r.WriteRSTStream(id, http2.ErrCodeCancel) },
		"refused": func(r *rawClient, id uint32) { _ = r.WriteWindowUpdate(id, 1<<31-1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			few, many := s.dial(t), s.dial(t)
			for i := range uint32(100) {
				few.request(2*i+1, "/wait", true)
				waste(few, 2*i+1)
			}
			few.request(1001, "/", true)
			for few.expect(http2.FrameHeaders).Header().StreamID != 1001 {
			}
			go func() {
				for i := range uint32(1 << 20) {
					many.request(2*i+1, "/wait", true)
					if waste(many, 2*i+1); many.broken() {
						return
					}
				}
			}()
			if code := many.expect(http2.FrameGoAway).(*http2.GoAwayFrame).ErrCode; code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the connection ends with %v", code)
			}
			many.end()
		})
	}
}

// broken tells whether nothing more can be written.
func (r *rawClient) broken() bool {
	return r.WritePing(false, [8]byte{}) != nil
}

// FuzzConn takes any frames behind the preface.
func FuzzConn(f *testing.F) {
	var seed bytes.Buffer
	fr := http2.NewFramer(&seed, nil)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x83, 0x87, 0x84, 0x41, 0x01, 'x'}, EndHeaders: true})
	_ = fr.WriteData(1, true, []byte("body"))
	_ = fr.WriteWindowUpdate(1, 1000)
	_ = fr.WritePing(false, [8]byte{})
	_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
	_ = fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	f.Add(seed.Bytes())
	s := serve(f, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		fmt.Fprint(w, r.Header)
	}, Config{MaxStreams: 10}, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := tls.Dial("tcp", s.addr, s.tls)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		go func() {
			_, _ = c.Write(append([]byte(http2.ClientPreface), data...))
			_ = c.CloseWrite()
		}()
		var late net.Error
		if _, err := io.Copy(io.Discard, c); errors.As(err, &late) && late.Timeout() {
			t.Error("the connection does not end")
		}
	})
}

// TestEarlyAnswer: who is answered before the end of its body hears so, unless it
// ends it all the same.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			time.Sleep(3 * resetAfter)
		}
	}, Config{}, nil)
	r := s.dial(t)
	r.request(1, "/", false)
	if f := r.expect(http2.FrameHeaders); !f.Header().Flags.Has(http2.FlagHeadersEndStream) {
		t.Errorf("the answer goes on: %v", f)
	}
	if f, ok := r.expect(http2.FrameRSTStream).(*http2.RSTStreamFrame); !ok || f.StreamID != 1 || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("%v", f)
	}
	id := uint32(3)
	for _, finish := range []func(id uint32) error{
		func(id uint32) error { return r.WriteData(id, true, []byte("the rest")) },
		func(id uint32) error { r.headers(id, true, "a", "trailer"); return nil },
	} {
		for inTime := false; !inTime; id += 4 {
			began := time.Now()
			r.request(id, "/", false)
			r.expect(http2.FrameHeaders)
			if err := finish(id); err != nil {
				t.Fatal(err)
			}
			// The answer to the ping says that the end has been heard.
			_ = r.WritePing(false, [8]byte{})
			reset := r.until(http2.FramePing)
			inTime = time.Since(began) < resetAfter
			r.request(id+2, "/later", true)
			reset = r.until(http2.FrameHeaders) || reset
			if reset && inTime {
				t.Fatal("a reset")
			}
		}
	}
}

// until reads up to a frame of a kind, and tells whether a reset came before.
func (r *rawClient) until(kind http2.FrameType) (reset bool) {
	r.t.Helper()
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.t.Fatalf("no %v: %v", kind, err)
		}
		switch f.Header().Type {
		case kind:
			return reset
		case http2.FrameRSTStream:
			reset = true
		}
	}
}
