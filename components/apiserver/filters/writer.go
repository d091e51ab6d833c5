package filters

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"time"

	"hyperkube/internal/serving/gracefulclose"
)

// writer is the ResponseWriter of the chain. It records the status and size of the response for
// metrics, and can defer sending the response until the seats are released.
type writer struct {
	http.ResponseWriter
	code     int
	hijacked bool
	// size is the number of bytes of the response body so far.
	size int
	// passed is set when the limiter has passed on the request. A status 429 then comes from
	// another handler.
	passed bool
	// canDefer is set while the request has seats. Later then stores the function in deferredSend,
	// which the chain calls after the seats are released.
	canDefer     bool
	deferredSend func()
	// privateBytes is the memory that only the deferred response uses.
	privateBytes int
	// entered is when the request entered its current stage, audit or the limiter.
	entered time.Time
	// onSeats, unless nil, is called when the request gets its seats.
	onSeats func()
}

// Later implements request.Sender. If the request has seats of API Priority and Fairness, the chain calls send, which
// writes the response, after it has released them. Otherwise Later calls send immediately. private is the number of
// bytes of memory that only this response uses.
func (w *writer) Later(private int, send func()) {
	if !w.canDefer {
		send()
		return
	}
	w.privateBytes, w.deferredSend = private, send
}

// WriteHeader implements http.ResponseWriter. It records the first final status, for metrics.
func (w *writer) WriteHeader(code int) {
	if w.code == 0 && code >= http.StatusOK {
		w.begin(code)
	}
	w.ResponseWriter.WriteHeader(code)
}

// begin records the status before anything is sent. It disables caching of the response unless the
// handler has set Cache-Control.
func (w *writer) begin(code int) {
	w.code = code
	if h := w.Header(); len(h["Cache-Control"]) == 0 {
		h["Cache-Control"] = noCacheHeader
	}
}

// noCacheHeader is the default value of Cache-Control, for all responses. It is shared and must not
// be modified.
var noCacheHeader = []string{"no-cache, private"}

// Write implements http.ResponseWriter. It counts the bytes of the response for metrics.
func (w *writer) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.begin(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

// Flush implements http.Flusher. It does nothing if the wrapped writer cannot flush.
func (w *writer) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack implements http.Hijacker. It records the status 101. Data that was written to the connection is not lost
// when it is closed (see gracefulclose). It returns an error if the wrapped writer cannot be hijacked.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("hijacking connection: %w", http.ErrNotSupported)
	}
	conn, rw, err := h.Hijack()
	if err == nil {
		w.hijacked = true
		w.code = http.StatusSwitchingProtocols
		conn = gracefulclose.Conn(conn)
	}
	return conn, rw, err
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// status returns the response status, which is 200 if the handler has not set it.
func (w *writer) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
