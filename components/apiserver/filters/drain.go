package filters

import (
	"io"
	"net/http"
	"time"
)

const (
	// serverDrains is the size of an unread request body that net/http discards by itself, so that
	// the connection remains usable.
	serverDrains = 256 << 10
	// maxDrained is the number of bytes of an unread request body that drain discards at most,
	// drainTime the time that this may take.
	maxDrained = 16 << 20
	drainTime  = 10 * time.Second
)

// drain discards the unread part of the request body after an error response over HTTP/1, up to maxDrained bytes and
// for drainTime. Otherwise a client that sends its complete body before it reads would not see the response, because
// closing a connection with unread data resets it. It does nothing for small bodies, which net/http discards, and for
// clients that wait for "100 Continue". Package h2 handles this for HTTP/2.
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
