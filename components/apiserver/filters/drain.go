package filters

import (
	"io"
	"net/http"
	"time"
)

const (
	// serverDrains is how much of an unread body net/http discards by itself, which keeps the connection usable.
	serverDrains = 256 << 10
	// maxDrained is how much of an unread body is discarded, drainTime how long that may take.
	maxDrained = 16 << 20
	drainTime  = 10 * time.Second
)

// drain discards a bounded amount of the rest of the request body after an error response over HTTP/1. A client that
// sends all of its body before it reads would not see the response otherwise: closing a connection with unread data
// resets it. Package h2 handles this for HTTP/2.
func drain(w *writer, req *http.Request) {
	if req.ProtoMajor != 1 || w.code < http.StatusBadRequest || w.hijacked || req.Body == nil ||
		req.ContentLength >= 0 && req.ContentLength <= serverDrains {
		return
	}
	if req.ContentLength > maxBody && req.Header.Get("Expect") != "" {
		return // the response is instead of 100 Continue: the client does not send the body
	}
	rc := http.NewResponseController(w.ResponseWriter)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, req.Body, maxDrained) // the request is answered, whatever the client does
}
