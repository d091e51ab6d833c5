package h2

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestClosedStream sends each type of frame on closed streams.
func TestClosedStream(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	}, Config{}, nil)
	const id = 7 // 5 is never opened
	closings := map[string]func(r *rawClient){
		"responded": func(r *rawClient) {
			r.request(id, "/", true)
			r.expect(http2.FrameHeaders)
		},
		"reset by the client": func(r *rawClient) {
			r.request(id, "/wait", false)
			_ = r.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"reset by the server": func(r *rawClient) {
			r.request(id, "/wait", false)
			_ = r.WriteWindowUpdate(id, 1<<31-1)
			r.expect(http2.FrameRSTStream)
		},
		"refused by the server": func(r *rawClient) {
			r.headers(id, false, ":method", "POST")
			r.expect(http2.FrameRSTStream)
		},
	}
	type outcome struct {
		kind http2.FrameType
		code http2.ErrCode
	}
	tolerated := outcome{kind: http2.FramePing}
	reset, protocol := outcome{http2.FrameRSTStream, http2.ErrCodeStreamClosed}, outcome{http2.FrameGoAway, http2.ErrCodeProtocol}
	for _, c := range []struct {
		name string
		send func(r *rawClient, id uint32) error
		// afterServer is the outcome on a stream that the server has reset, others that on the other closed ones.
		afterServer, others outcome
	}{
		{"DATA", func(r *rawClient, id uint32) error { return r.WriteData(id, true, []byte("x")) }, tolerated, reset},
		{"HEADERS", func(r *rawClient, id uint32) error { r.request(id, "/", true); return nil }, tolerated, protocol},
		{"trailers", func(r *rawClient, id uint32) error { r.headers(id, true, "x", "y"); return nil }, tolerated, protocol},
		{"malformed HEADERS", func(r *rawClient, id uint32) error { r.headers(id, true, "X", "y"); return nil }, tolerated,
			outcome{http2.FrameRSTStream, http2.ErrCodeProtocol}},
		{"WINDOW_UPDATE", func(r *rawClient, id uint32) error { return r.WriteWindowUpdate(id, 1) }, tolerated, tolerated},
		{"RST_STREAM", func(r *rawClient, id uint32) error { return r.WriteRSTStream(id, http2.ErrCodeCancel) }, tolerated, tolerated},
		{"PRIORITY", func(r *rawClient, id uint32) error { return r.WritePriority(id, http2.PriorityParam{}) }, tolerated, tolerated},
	} {
		for name, closing := range closings {
			want, ids := c.others, []uint32{id, id - 2}
			if name == "reset by the server" || name == "refused by the server" {
				want, ids = c.afterServer, ids[:1]
			}
			for _, id := range ids {
				t.Run(fmt.Sprintf("%s on %d, 7 %s", c.name, id, name), func(t *testing.T) {
					t.Parallel()
					r := s.dial(t)
					closing(r)
					_ = c.send(r, id)
					_ = r.WritePing(false, [8]byte{1})
					if got := r.outcome(); got != want {
						t.Errorf("%v, want %v", got, want)
					}
				})
			}
		}
	}
}

// outcome reads up to an acknowledged PING, RST_STREAM or GOAWAY frame, and returns its type and error code.
func (r *rawClient) outcome() (got struct {
	kind http2.FrameType
	code http2.ErrCode
}) {
	r.t.Helper()
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.t.Fatal(err)
		}
		got.kind = f.Header().Type
		switch f := f.(type) {
		case *http2.PingFrame:
			return got
		case *http2.RSTStreamFrame:
			got.code = f.ErrCode
			return got
		case *http2.GoAwayFrame:
			got.code = f.ErrCode
			return got
		}
	}
}

// TestIdleStream: an error on an idle stream is one of the connection, and does not close the lower streams.
func TestIdleStream(t *testing.T) {
	t.Parallel()
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, Config{}, nil)
	r := s.dial(t)
	_ = r.WriteRawFrame(http2.FrameWindowUpdate, 0, 9, make([]byte, 4))
	if f := r.expect(http2.FrameGoAway).(*http2.GoAwayFrame); f.ErrCode != http2.ErrCodeProtocol || f.LastStreamID != 0 {
		t.Error(f)
	}
}

// TestFloods: a client that keeps the server busy with frames that make no request loses its connection.
func TestFloods(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Config{}, nil)
	for _, c := range []struct {
		name  string
		begin func(r *rawClient)
		send  func(r *rawClient, n uint32) error
	}{
		{name: "CONTINUATION", begin: func(r *rawClient) {
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
		}, send: func(r *rawClient, _ uint32) error { return r.WriteContinuation(1, false, nil) }},
		{name: "CONTINUATION of one byte", begin: func(r *rawClient) {
			// A field with a name of 5 bytes, whose value has 1 MiB.
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\x00\x05names\x7f\x81\xff\x3f")})
		}, send: func(r *rawClient, _ uint32) error { return r.WriteContinuation(1, false, []byte("x")) }},
		{name: "SETTINGS", send: func(r *rawClient, n uint32) error {
			return r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n % 2})
		}},
		{name: "acknowledged SETTINGS", send: func(r *rawClient, _ uint32) error { return r.WriteSettingsAck() }},
		{name: "many SETTINGS", send: func(r *rawClient, n uint32) error {
			return r.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 6*2000))
		}},
		{name: "PING", send: func(r *rawClient, _ uint32) error { return r.WritePing(false, [8]byte{}) }},
		{name: "acknowledged PING", send: func(r *rawClient, _ uint32) error { return r.WritePing(true, [8]byte{}) }},
		{name: "PRIORITY", send: func(r *rawClient, n uint32) error { return r.WritePriority(2*n+1, http2.PriorityParam{}) }},
		{name: "WINDOW_UPDATE", send: func(r *rawClient, _ uint32) error { return r.WriteWindowUpdate(0, 1) }},
		{name: "WINDOW_UPDATE of a stream", begin: func(r *rawClient) { r.request(1, "/", false) },
			send: func(r *rawClient, _ uint32) error { return r.WriteWindowUpdate(1, 1) }},
		{name: "empty DATA", begin: func(r *rawClient) { r.request(1, "/", false) },
			send: func(r *rawClient, _ uint32) error { return r.WriteData(1, false, nil) }},
		{name: "padding", begin: func(r *rawClient) { r.request(1, "/", false) },
			send: func(r *rawClient, _ uint32) error { return r.WriteDataPadded(1, false, nil, make([]byte, 100)) }},
		{name: "DATA on a closed stream", begin: func(r *rawClient) { r.request(1, "/", false); _ = r.WriteRSTStream(1, http2.ErrCodeCancel) },
			send: func(r *rawClient, _ uint32) error { return r.WriteData(1, false, []byte("x")) }},
		{name: "RST_STREAM on a closed stream", begin: func(r *rawClient) { r.request(1, "/", true) },
			send: func(r *rawClient, _ uint32) error { return r.WriteRSTStream(1, http2.ErrCodeCancel) }},
		{name: "GOAWAY", send: func(r *rawClient, _ uint32) error { return r.WriteGoAway(0, http2.ErrCodeNo, nil) },
			begin: func(r *rawClient) { r.request(1, "/", true) }},
		{name: "unknown", send: func(r *rawClient, _ uint32) error { return r.WriteRawFrame(0x50, 0, 0, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := s.dial(t)
			if c.begin != nil {
				c.begin(r)
			}
			go func() {
				for n := range uint32(1 << 20) {
					if c.send(r, n) != nil {
						return
					}
				}
				r.Close() // it was not stopped
			}()
			if f := r.expect(http2.FrameGoAway).(*http2.GoAwayFrame); f.ErrCode != http2.ErrCodeEnhanceYourCalm {
				t.Error(f)
			}
			r.readToEnd()
		})
	}
}

// TestManyWindowUpdates reads a long response as net/http's client does: it updates both windows for each 4 KiB.
func TestManyWindowUpdates(t *testing.T) {
	t.Parallel()
	const total = 64 << 20
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 64<<10)
		for range total / len(piece) {
			_, _ = w.Write(piece)
		}
	}, Config{}, nil)
	r := s.dial(t)
	r.request(1, "/", true)
	for got, updated := 0, 0; got < total; {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatalf("reading after %d bytes: %v", got, err)
		}
		if data, ok := f.(*http2.DataFrame); ok {
			got += len(data.Data())
		}
		for ; got-updated >= 4<<10; updated += 4 << 10 {
			_ = r.WriteWindowUpdate(0, 4<<10)
			if err := r.WriteWindowUpdate(1, 4<<10); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDataAfterReset: a client that has much of a body in flight when the server resets its stream keeps its connection.
func TestDataAfterReset(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, Config{}, nil)
	r := s.dial(t)
	go func() {
		r.request(1, "/", false)
		_ = r.WriteWindowUpdate(1, 1<<31-1)
		for range 1000 {
			_ = r.WriteData(1, false, make([]byte, 1000))
		}
		r.request(3, "/", false)
		_ = r.WriteData(3, true, []byte("x"))
	}()
	if f := r.expect(http2.FrameRSTStream).(*http2.RSTStreamFrame); f.StreamID != 1 || f.ErrCode != http2.ErrCodeFlowControl {
		t.Error(f)
	}
	for {
		f := r.expect(http2.FrameHeaders)
		if f.Header().StreamID == 3 {
			return
		}
	}
}
