package dataplane

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"
)

// accessLog writes a JSON object for each request, one per line. Lines are collected and written together: the first line
// after a pause starts a timer.
type accessLog struct {
	mu      sync.Mutex // guards the fields below
	out     *bufio.Writer
	encoder *json.Encoder
	timer   *time.Timer // nil unless lines wait to be written
	closed  bool
}

// flushDelay is how long a line of the access log waits for others.
const flushDelay = 200 * time.Millisecond

// newAccessLog returns an access log that writes to w.
func newAccessLog(w io.Writer) *accessLog {
	out := bufio.NewWriterSize(w, 64<<10)
	return &accessLog{out: out, encoder: json.NewEncoder(out)}
}

// accessRecord is a completed request, for the access log.
type accessRecord struct {
	request         *http.Request
	began           time.Time
	took            time.Duration
	code            int
	bytes           int64
	route, endpoint string
}

// accessLine is the JSON form of an accessRecord.
type accessLine struct {
	Time      string  `json:"time"`
	Client    string  `json:"client"`
	Method    string  `json:"method"`
	Host      string  `json:"host"`
	Path      string  `json:"path"`
	Protocol  string  `json:"protocol"`
	TLS       bool    `json:"tls,omitempty"`
	Code      int     `json:"code"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Route     string  `json:"route,omitempty"`
	Endpoint  string  `json:"endpoint,omitempty"`
	UserAgent string  `json:"userAgent,omitempty"`
	Referer   string  `json:"referer,omitempty"`
}

// write adds a request. The query is not logged, because it often contains secrets.
func (l *accessLog) write(r accessRecord) {
	line := accessLine{
		Time: r.began.UTC().Format(time.RFC3339Nano), Client: r.request.RemoteAddr, Method: r.request.Method, Host: r.request.Host,
		Path: r.request.URL.Path, Protocol: r.request.Proto, TLS: r.request.TLS != nil, Code: r.code, Bytes: r.bytes,
		Seconds: r.took.Seconds(), Route: r.route, Endpoint: r.endpoint, UserAgent: r.request.UserAgent(), Referer: r.request.Referer(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	_ = l.encoder.Encode(line) // the log is lost if it cannot be written
	if l.timer == nil {
		l.timer = time.AfterFunc(flushDelay, l.flush)
	}
}

// flush writes the collected lines.
func (l *accessLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	_ = l.out.Flush()
}

// close writes the collected lines. Later requests are not logged.
func (l *accessLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	_ = l.out.Flush()
}
