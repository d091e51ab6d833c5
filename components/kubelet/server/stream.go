package server

import (
	"bufio"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/serving/gracefulclose"
	"hyperkube/internal/serving/upgradeproxy"
)

// stream returns the handler of attach or, if attach is false, exec. It proxies the client's connection to
// the streaming server of the runtime.
func (s *Server) stream(attach bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodPost {
			http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		o, ok := streamOptions(r.URL.Query())
		if !ok {
			http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
			return
		}
		_, c, err := s.cfg.Backend.Container(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")), r.PathValue("container"), false)
		if err != nil {
			fail(w, err)
			return
		}
		var at *url.URL
		if attach {
			at, err = s.cfg.Backend.Attach(r.Context(), c.ID, o)
		} else {
			at, err = s.cfg.Backend.Exec(r.Context(), c.ID, o)
		}
		if err != nil {
			fail(w, err)
			return
		}
		s.proxy(w, r, at)
	}
}

// streamOptions parses the requested command and streams, with the parameters of the API ("stdin") or of the
// kubelet ("input"). With a terminal, stderr is ignored, because a terminal has a single output. It returns
// false if no stream is requested.
func streamOptions(q url.Values) (StreamOptions, bool) {
	flag := func(names ...string) bool {
		for _, n := range names {
			if v := q.Get(n); v == "1" || v == "true" {
				return true
			}
		}
		return false
	}
	o := StreamOptions{
		Command: q["command"],
		TTY:     flag("tty"),
		Stdin:   flag("input", "stdin"),
		Stdout:  flag("output", "stdout"),
		Stderr:  flag("error", "stderr"),
	}
	if o.TTY && o.Stderr {
		// A terminal has a single output.
		o.Stderr = false
	}
	return o, o.Stdin || o.Stdout || o.Stderr
}

// portForward serves port-forward by proxying the client's connection to the streaming server of the runtime. A
// port that is not valid gets status 400.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	var ports []int32
	for _, v := range append(r.URL.Query()["port"], r.URL.Query()["ports"]...) {
		for one := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseInt(one, 10, 32)
			if err != nil || n < 1 || n > 65535 {
				http.Error(w, "invalid port "+strconv.Quote(one), http.StatusBadRequest)
				return
			}
			ports = append(ports, int32(n))
		}
	}
	at, err := s.cfg.Backend.PortForward(r.Context(), r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")), ports)
	if err != nil {
		fail(w, err)
		return
	}
	s.proxy(w, r, at)
}

// proxy proxies the client's connection to the URL at of the runtime's streaming server, regardless of the
// protocol. Idle connections are closed after StreamIdle, unless it is 0.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, at *url.URL) {
	h := upgradeproxy.NewHandler(at, http.DefaultTransport, false, true, responder{})
	h.UseLocationHost = true
	h.ServeHTTP(&idleTimeoutWriter{ResponseWriter: w, idle: s.cfg.StreamIdle}, r)
}

// idleTimeoutWriter is a ResponseWriter whose hijacked connections have an idle timeout.
type idleTimeoutWriter struct {
	http.ResponseWriter
	idle time.Duration
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (i *idleTimeoutWriter) Unwrap() http.ResponseWriter { return i.ResponseWriter }

// Hijack takes over the connection and adds the idle timeout to it.
func (i *idleTimeoutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(i.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	conn = gracefulclose.Conn(conn)
	if i.idle > 0 {
		conn = &idleConn{Conn: conn, idle: i.idle}
	}
	return conn, rw, nil
}

// idleConn is a connection that is closed when nothing was read or written for the duration idle.
type idleConn struct {
	net.Conn
	idle     time.Duration
	extended atomic.Int64 // time of the last extension, in Unix nanoseconds
}

// extendDeadline sets the deadline of the connection to idle from now, at most once in a hundredth of idle.
func (c *idleConn) extendDeadline() {
	// Extend it only after a hundredth of the timeout.
	now := time.Now()
	if last := c.extended.Load(); now.UnixNano()-last > int64(c.idle/100) && c.extended.CompareAndSwap(last, now.UnixNano()) {
		_ = c.SetDeadline(now.Add(c.idle))
	}
}

func (c *idleConn) Read(p []byte) (int, error) {
	c.extendDeadline()
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	c.extendDeadline()
	return c.Conn.Write(p)
}

// responder responds to the client with an HTTP error if the runtime's streaming server cannot be reached.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}
