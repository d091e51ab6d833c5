package filters

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"time"

	"hyperkube/internal/linger"
)

// writer remembers with which status a request was answered.
type writer struct {
	http.ResponseWriter
	code     int
	hijacked bool
	// size is how many bytes the answer has so far.
	size int
	// passed: the request was let through by the limiter.
	passed bool
	// deferred: somebody calls later once the request has no seats.
	deferred bool
	later    func()
	private  int
	// entered is when the request came to the stage that it is in, audit or the
	// limiter.
	entered time.Time
	// begun, unless nil, is called when the request has its seats.
	begun func()
}

// Later as request.Sender.
func (w *writer) Later(private int, send func()) {
	if !w.deferred {
		send()
		return
	}
	w.private, w.later = private, send
}

// WriteHeader remembers code.
func (w *writer) WriteHeader(code int) {
	if w.code == 0 && code >= http.StatusOK {
		w.begin(code)
	}
	w.ResponseWriter.WriteHeader(code)
}

// begin comes before anything is sent. Nobody in between is to keep answers,
// unless who answers says so.
func (w *writer) begin(code int) {
	w.code = code
	if h := w.Header(); len(h["Cache-Control"]) == 0 {
		h["Cache-Control"] = dontKeep
	}
}

// dontKeep is shared: nobody writes to it.
var dontKeep = []string{"no-cache, private"}

// Write is that of the wrapped writer.
func (w *writer) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.begin(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

// Flush sends what was written.
func (w *writer) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack takes the connection over.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("taking the connection over: %w", http.ErrNotSupported)
	}
	conn, rw, err := h.Hijack()
	if err == nil {
		w.hijacked = true
		w.code = http.StatusSwitchingProtocols
		conn = linger.Conn(conn)
	}
	return conn, rw, err
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
