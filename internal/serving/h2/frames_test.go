package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawClient is a client that sends and receives frames.
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
	_ = c.SetDeadline(time.Now().Add(testTimeout))
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

// expect reads frames until one of the type kind.
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

// readToEnd reads until the connection is closed.
func (r *rawClient) readToEnd() {
	r.t.Helper()
	for {
		if _, err := r.ReadFrame(); err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				r.t.Error("the connection was not closed")
			}
			return
		}
	}
}

// TestErrors tests protocol errors of clients. code is the expected error code of the stream, or of
// the connection if conn is set.
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
		{name: "decreasing stream ID", do: func(r *rawClient) { r.request(5, "/wait", true); r.request(3, "/", false) }, code: http2.ErrCodeProtocol, conn: true},
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
		{name: "userinfo in authority", do: func(r *rawClient) {
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
		{name: "data after END_STREAM", do: func(r *rawClient) { r.request(1, "/wait", true); _ = r.WriteData(1, true, nil) }, code: http2.ErrCodeStreamClosed},
		{name: "trailers after END_STREAM", do: func(r *rawClient) { r.request(1, "/wait", true); r.headers(1, true, "x", "y") }, code: http2.ErrCodeStreamClosed},
		{name: "trailers without END_STREAM", do: func(r *rawClient) { r.request(1, "/wait", false); r.headers(1, false, "x", "y") }, code: http2.ErrCodeProtocol},
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
		{name: "bad setting", do: func(r *rawClient) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) }, code: http2.ErrCodeProtocol, conn: true},
		{name: "rapid reset", do: func(r *rawClient) {
			// A single handler that does not return must not allow more than a limited number of
			// streams.
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
					t.Errorf("connection closed with %v, want %v", f.ErrCode, c.code)
				}
				r.readToEnd()
				return
			}
			if f := r.expect(http2.FrameRSTStream).(*http2.RSTStreamFrame); f.ErrCode != c.code {
				t.Errorf("stream reset with %v, want %v", f.ErrCode, c.code)
			}
		})
	}
}

// TestNotHTTP2 tests clients that send an invalid preface.
func TestNotHTTP2(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, Config{}, nil)
	c, err := tls.Dial("tcp", s.addr, s.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n.....")
	if data, _ := io.ReadAll(c); len(data) != 0 {
		t.Errorf("got debug data %q", data)
	}
	r := s.dial(t)
	_ = r.WritePing(false, [8]byte{1})
	if f := r.expect(http2.FramePing); !f.(*http2.PingFrame).IsAck() {
		t.Error(f)
	}
}

// TestLargeHeader checks that a too large header is rejected with an error response, and that the
// connection stays open.
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

// TestSmallWindows sends responses to a client with small frames and windows of various sizes,
// while settings change.
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
		t.Errorf("%d bytes, want %d, or wrong content", len(got), len(want))
	}
}

// TestStalled checks that a client that does not read uses bounded memory and does not block the
// server forever.
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
	case <-time.After(testTimeout):
		t.Error("the write did not time out")
	}
}

// TestRapidReset checks that a client that opens streams only to reset them, or to have them reset,
// receives ENHANCE_YOUR_CALM and is disconnected, and that occasional resets are accepted.
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
				t.Errorf("connection closed with %v", code)
			}
			many.readToEnd()
		})
	}
}

// broken reports whether writing to the connection fails.
func (r *rawClient) broken() bool {
	return r.WritePing(false, [8]byte{}) != nil
}

// FuzzConn sends arbitrary frames after the preface.
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
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		go func() {
			_, _ = c.Write(append([]byte(http2.ClientPreface), data...))
			_ = c.CloseWrite()
		}()
		var late net.Error
		if _, err := io.Copy(io.Discard, c); errors.As(err, &late) && late.Timeout() {
			t.Error("the connection was not closed")
		}
	})
}

// TestEarlyResponse checks that a client whose request is answered before its body is complete
// receives a reset, unless it completes the body in time.
func TestEarlyResponse(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			time.Sleep(3 * resetAfter)
		}
	}, Config{}, nil)
	r := s.dial(t)
	r.request(1, "/", false)
	if f := r.expect(http2.FrameHeaders); !f.Header().Flags.Has(http2.FlagHeadersEndStream) {
		t.Errorf("the response continues: %v", f)
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
			// The ping response shows that END_STREAM was processed.
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

// until reads frames until one of the type kind, and reports whether a reset was received before
// it.
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

// TestResetBody checks that a handler never takes a partial body for a complete one when the client
// resets the stream.
func TestResetBody(t *testing.T) {
	t.Parallel()
	type read struct {
		data string
		err  error
	}
	begun, got := make(chan struct{}), make(chan read, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		one := make([]byte, r.ContentLength)
		n, err := r.Body.Read(one[:1])
		if r.URL.Path == "/all" && err == nil {
			n, err = io.ReadFull(r.Body, one[1:])
			n++
		}
		begun <- struct{}{}
		<-r.Context().Done()
		if err == nil {
			var rest []byte
			rest, err = io.ReadAll(r.Body)
			one = append(one[:n], rest...)
		}
		got <- read{string(one), err}
	}, Config{}, nil)
	r := s.dial(t)
	for i, test := range []struct {
		path string
		err  error
	}{{"/all", nil}, {"/some", errReset}} {
		id := uint32(2*i + 1)
		r.headers(id, false, ":method", "DELETE", ":scheme", "https", ":authority", "x", ":path", test.path, "content-length", "4")
		_ = r.WriteData(id, true, []byte("body"))
		<-begun
		_ = r.WriteRSTStream(id, http2.ErrCodeCancel)
		if got := <-got; !errors.Is(got.err, test.err) || test.err == nil && got.data != "body" {
			t.Errorf("%s: %q, %v", test.path, got.data, got.err)
		}
	}
}
