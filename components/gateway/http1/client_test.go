package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/serving/rawconn"
)

// server accepts connections, which the test serves.
type server struct {
	*testing.T
	listener net.Listener
	client   *Client
}

// newServer returns a server and a client of it.
func newServer(t *testing.T, configure func(*Config)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	cfg := Config{Address: l.Addr().String(), Dial: new(rawconn.MonitorWaker).Dialer(0), DialTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxIdle: 10}
	if configure != nil {
		configure(&cfg)
	}
	c := New(cfg)
	t.Cleanup(c.CloseIdleConnections)
	return &server{t, l, c}
}

// accept accepts a connection.
func (s *server) accept() *serverConn {
	conn, err := s.listener.Accept()
	if err != nil {
		s.Error(err)
		return nil
	}
	s.Cleanup(func() { conn.Close() })
	return &serverConn{s, conn, bufio.NewReader(conn)}
}

// serverConn is the server's side of a connection.
type serverConn struct {
	*server
	net.Conn
	reader *bufio.Reader
}

// answer reads a request with its body and answers it. It returns the request and its body.
func (c *serverConn) answer(response string) (*http.Request, string) {
	r, err := http.ReadRequest(c.reader)
	if err != nil {
		c.Error(err)
		return nil, ""
	}
	body, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(c.Conn, response)
	return r, string(body)
}

// request returns a request.
func (s *server) request(method, body string) *http.Request {
	s.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(s.Context(), method, "http://"+s.listener.Addr().String()+"/path?q=1", reader)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// get sends a request and returns the body of its response.
func (s *server) get(r *http.Request) string {
	s.Helper()
	res, err := s.client.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return res.Status + " " + string(body)
}

// idle returns the number of idle connections.
func (s *server) idle() int {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	return len(s.client.idle)
}

// TestResponses checks how responses end, and whether the connection can be used again.
func TestResponses(t *testing.T) {
	for name, test := range map[string]struct {
		method, response, want string
		idle                   int
	}{
		"length":           {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 OK hello", 1},
		"empty":            {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 OK ", 1},
		"chunked":          {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "200 OK hello", 1},
		"no content":       {"GET", "HTTP/1.1 204 No Content\r\n\r\n", "204 No Content ", 1},
		"HEAD":             {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "200 OK ", 1},
		"close":            {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", "200 OK hello", 0},
		"HTTP/1.0":         {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 OK hello", 0},
		"more than length": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, HTTP/1.1 200 OK\r\n\r\n", "200 OK hello", 0},
		"informational":    {"GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 OK hello", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			go func() { s.accept().answer(test.response) }()
			if got := s.get(s.request(test.method, "")); got != test.want {
				t.Errorf("response %q, want %q", got, test.want)
			}
			if n := s.idle(); n != test.idle {
				t.Errorf("%d idle connections, want %d", n, test.idle)
			}
		})
	}
}

// TestInvalidResponses checks that responses that are not complete are errors.
func TestInvalidResponses(t *testing.T) {
	for name, response := range map[string]string{
		"none":                 "",
		"header":               "HTTP/1.1 200 OK\r\nContent-",
		"no HTTP":              "hello\r\n\r\n",
		"large header":         "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxHeader) + "\r\n\r\n",
		"many informational":   strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInformational+1),
		"body":                 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
		"chunk":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
		"length and two lines": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			go func() {
				c := s.accept()
				c.answer(response)
				c.Close()
			}()
			res, err := s.client.RoundTrip(s.request("GET", ""))
			if err == nil {
				_, err = io.ReadAll(res.Body)
			}
			if err == nil {
				t.Error("no error")
			}
			if n := s.idle(); n != 0 {
				t.Errorf("%d idle connections", n)
			}
		})
	}
}

// TestTrailers checks trailers and informational responses.
func TestTrailers(t *testing.T) {
	s := newServer(t, nil)
	go func() {
		s.accept().answer("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nSum: 1\r\n\r\n")
	}()
	link := ""
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		link = h.Get("Link")
		return nil
	}})
	res, err := s.client.RoundTrip(s.request("GET", "").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err != nil || res.Trailer.Get("Sum") != "1" || link != "</a>" {
		t.Errorf("trailer %v, link %q, error %v", res.Trailer, link, err)
	}
}

// TestRequests checks what the server receives.
func TestRequests(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	for name, test := range map[string]struct {
		method, body string
		unknown      bool // length of the body
		length       int64
		encoding     string
	}{
		"GET":               {"GET", "", false, 0, ""},
		"POST without body": {"POST", "", false, 0, ""},
		"POST":              {"POST", "hello", false, 5, ""},
		"chunked":           {"POST", "hello", true, -1, "chunked"},
		"large":             {"PUT", strings.Repeat("0123456789", 100000), false, 1000000, ""},
		"large, chunked":    {"PUT", strings.Repeat("0123456789", 100000), true, -1, "chunked"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			r := s.request(test.method, test.body)
			r.Host = "example.com"
			r.Header["X-Two"] = []string{"1", "2"}
			r.Header.Set("User-Agent", "")
			if test.unknown {
				r.ContentLength = -1
			}
			got := make(chan *http.Request, 1)
			go func() {
				c := s.accept()
				in, body := c.answer(ok)
				if body != test.body {
					t.Errorf("body of %d bytes, want %d", len(body), len(test.body))
				}
				got <- in
			}()
			s.get(r)
			in := <-got
			if in.Method != test.method || in.RequestURI != "/path?q=1" || in.Host != "example.com" || len(in.Header["X-Two"]) != 2 || in.ContentLength != test.length || strings.Join(in.TransferEncoding, "") != test.encoding {
				t.Errorf("request %+v", in)
			}
			if _, ok := in.Header["User-Agent"]; ok || test.method == "POST" && test.body == "" && in.Header.Get("Content-Length") != "0" {
				t.Errorf("header %v", in.Header)
			}
		})
	}
}

// TestInvalidRequests checks that a request that could be read as two is not sent.
func TestInvalidRequests(t *testing.T) {
	s := newServer(t, nil)
	for name, change := range map[string]func(*http.Request){
		"method": func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\n" },
		"host":   func(r *http.Request) { r.Host = "a\r\nb" },
		"name":   func(r *http.Request) { r.Header["a\r\nb"] = []string{"c"} },
		"value":  func(r *http.Request) { r.Header["A"] = []string{"b\r\nc"} },
		"query":  func(r *http.Request) { r.URL.RawQuery = "a b" },
	} {
		r := s.request("GET", "")
		change(r)
		if res, err := s.client.RoundTrip(r); err == nil {
			res.Body.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

const short = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"

// TestClosedByServer checks that an idle connection that the server has closed is not used, and that a request is repeated if
// the server closes the connection when it arrives.
func TestClosedByServer(t *testing.T) {
	s := newServer(t, nil)
	next := make(chan struct{})
	go func() {
		c := s.accept()
		c.answer(short)
		<-next
		c.Close()
		next <- struct{}{}
		c = s.accept()
		c.answer(short)
		if _, err := http.ReadRequest(c.reader); err != nil {
			t.Error(err)
		}
		c.Close()
		s.accept().answer(short)
	}()
	s.get(s.request("GET", ""))
	next <- struct{}{}
	<-next
	s.get(s.request("POST", "body")) // must not be repeated, so it must use a new connection
	s.get(s.request("GET", ""))
}

// TestNotRepeated checks that a request that the server may have processed is not repeated.
func TestNotRepeated(t *testing.T) {
	s := newServer(t, nil)
	go func() {
		c := s.accept()
		c.answer(short)
		c.answer("")
		c.Close()
	}()
	s.get(s.request("GET", ""))
	if res, err := s.client.RoundTrip(s.request("POST", "body")); !errors.Is(err, errNotAnswered) {
		if err == nil {
			res.Body.Close()
		}
		t.Errorf("error %v", err)
	}
}

// failing is a body that fails after its first bytes.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

func (*failing) Close() error { return nil }

// TestBodyErrors checks that the error of a request's body is returned.
func TestBodyErrors(t *testing.T) {
	errBody := errors.New("body")
	for name, length := range map[string]int64{"length": 10, "chunked": -1} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			go func() { _, _ = io.Copy(io.Discard, s.accept()) }()
			r := s.request("POST", "")
			r.Body, r.ContentLength = &failing{strings.NewReader("hello"), errBody}, length
			if res, err := s.client.RoundTrip(r); !errors.Is(err, errBody) {
				if err == nil {
					res.Body.Close()
				}
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestEarlyResponse checks that a response is returned before the body of the request is complete.
func TestEarlyResponse(t *testing.T) {
	s := newServer(t, nil)
	go func() {
		c := s.accept()
		if _, err := http.ReadRequest(c.reader); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(c.Conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
	}()
	body, w := io.Pipe()
	defer w.Close()
	r := s.request("POST", "")
	r.Body, r.ContentLength = body, -1
	if got := s.get(r); got != "413 Too Large " {
		t.Errorf("response %q", got)
	}
	if n := s.idle(); n != 0 {
		t.Errorf("%d idle connections", n)
	}
}

// TestCancel checks that the end of the context ends a request before and after the header of the response.
func TestCancel(t *testing.T) {
	for name, response := range map[string]string{"before": "", "after": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				c := s.accept()
				c.answer(response)
				if response == "" {
					cancel()
				}
				_, _ = io.Copy(io.Discard, c) // until the client closes the connection
			}()
			res, err := s.client.RoundTrip(s.request("GET", "").WithContext(ctx))
			if err == nil {
				cancel()
				_, err = io.ReadAll(res.Body)
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestUpgrade(t *testing.T) {
	s := newServer(t, nil)
	go func() {
		c := s.accept()
		c.answer("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello ")
		_, _ = io.Copy(c, c.reader)
		c.Close()
	}()
	r := s.request("GET", "")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	res, err := s.client.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	conn := res.Body.(interface {
		io.ReadWriteCloser
		CloseWrite() error
	})
	_, _ = io.WriteString(conn, "world")
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "hello world" || err != nil {
		t.Errorf("received %q, error %v", got, err)
	}
}

// TestIdle checks that idle connections are closed after the timeout, and that the number is limited.
func TestIdle(t *testing.T) {
	s := newServer(t, func(cfg *Config) { cfg.IdleTimeout = time.Millisecond })
	closed := make(chan error)
	go func() {
		c := s.accept()
		c.answer(short)
		_, err := c.reader.ReadByte()
		closed <- err
	}()
	s.get(s.request("GET", ""))
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Errorf("idle connection: %v", err)
	}
	s = newServer(t, func(cfg *Config) { cfg.MaxIdle = 0 })
	go func() { s.accept().answer(short) }()
	s.get(s.request("GET", ""))
	if n := s.idle(); n != 0 {
		t.Errorf("%d idle connections", n)
	}
}

// TestClose checks that a closed client closes its connections after their response.
func TestClose(t *testing.T) {
	s := newServer(t, nil)
	answered := make(chan struct{})
	go func() {
		c := s.accept()
		c.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
		<-answered
		_, _ = io.WriteString(c, "b")
	}()
	res, err := s.client.RoundTrip(s.request("GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	s.client.CloseIdleConnections()
	close(answered)
	if body, err := io.ReadAll(res.Body); string(body) != "ab" || err != nil {
		t.Errorf("body %q, error %v", body, err)
	}
	if n := s.idle(); n != 0 {
		t.Errorf("%d idle connections", n)
	}
}

func TestTLS(t *testing.T) {
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	t.Cleanup(backend.Close)
	roots := x509.NewCertPool()
	roots.AddCert(backend.Certificate())
	address := backend.Listener.Addr().String()
	s := newServer(t, func(cfg *Config) {
		cfg.Address, cfg.TLS = address, &tls.Config{ServerName: "example.com", RootCAs: roots, MinVersion: tls.VersionTLS12}
	})
	for range 3 {
		if got := s.get(s.request("POST", "hello")); got != "200 OK hello" {
			t.Errorf("response %q", got)
		}
	}
	if n := s.idle(); n != 1 {
		t.Errorf("%d idle connections", n)
	}
	other := newServer(t, func(cfg *Config) {
		cfg.Address, cfg.TLS = address, &tls.Config{ServerName: "example.org", RootCAs: roots, MinVersion: tls.VersionTLS12}
	})
	if res, err := other.client.RoundTrip(other.request("GET", "")); err == nil {
		res.Body.Close()
		t.Error("the certificate is for another name")
	}
}

func TestDialError(t *testing.T) {
	s := newServer(t, nil)
	s.listener.Close()
	res, err := s.client.RoundTrip(s.request("GET", ""))
	if err == nil {
		res.Body.Close()
	}
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		t.Errorf("error %v", err)
	}
}
