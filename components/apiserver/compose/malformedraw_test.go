package compose_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// closed stands for a connection that the server closes without a response.
const closed = 0

// TestMalformedMessages sends bytes over TLS that are not a valid HTTP/1.1 request, or whose body differs from what its
// header declares. The server responds with an error or closes the connection, and serves the next one.
func TestMalformedMessages(t *testing.T) {
	m := newMalformedServer(t)
	const (
		host   = "Host: x\r\n"
		post   = "POST /api/v1/namespaces/default/configmaps?dryRun=All HTTP/1.1\r\n" + host + "Content-Type: application/json\r\n"
		get    = "GET /api/v1/namespaces/default/configmaps/target HTTP/1.1\r\n" + host
		body   = `{"metadata":{"name":"raw"}}`
		shake  = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
		key    = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
		accept = "Sec-WebSocket-Version: 13\r\n"
		origin = "Origin: https://x\r\n"
		end    = "\r\n"
	)
	exec := func(headers string) string {
		return "GET /api/v1/namespaces/default/pods/target/exec?command=id&stdout=1 HTTP/1.1\r\n" + host + headers + end
	}
	watch := func(headers string) string {
		return "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 HTTP/1.1\r\n" + host + headers + end
	}
	many := func(n int, line string) string { return strings.Repeat(line, n) }
	for _, row := range []struct {
		name string
		send string
		want []int
	}{
		{"the control: a valid request", post + "Content-Length: 27\r\n" + end + body, []int{201}},
		{"the control: a valid chunked request", post + "Transfer-Encoding: chunked\r\n" + end + "1b\r\n" + body + "\r\n0\r\n\r\n", []int{201}},
		// The request line.
		{"nothing", "", []int{closed}},
		{"an empty line", "\r\n\r\n", []int{closed, 400}},
		{"noise", "\x00\xff\xfe\x80\r\n\r\n", []int{closed, 400}},
		{"no version", "GET /api\r\n\r\n", []int{400}},
		{"an unknown version", "GET /api HTTP/9.9\r\n" + host + end, []int{400, 505}},
		{"HTTP/2 in plain text", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{404}},
		{"a method with blanks", "GE T /api HTTP/1.1\r\n" + host + end, []int{400}},
		{"a method of control characters", "G\x01T /api HTTP/1.1\r\n" + host + end, []int{400}},
		{"a long method", strings.Repeat("G", 10_000) + " /api HTTP/1.1\r\n" + host + end, []int{400, 404, 405}},
		{"an invalid escape in the path", "GET /api/%zz HTTP/1.1\r\n" + host + end, []int{400}},
		{"a cut escape in the path", "GET /api/% HTTP/1.1\r\n" + host + end, []int{400}},
		{"control characters in the path", "GET /api/\x01\x02 HTTP/1.1\r\n" + host + end, []int{400, 404}},
		{"an absolute URL", "GET https://other/api/v1/secrets HTTP/1.1\r\n" + host + end, []int{200}},
		{"an authority only", "CONNECT 127.0.0.1:2379 HTTP/1.1\r\n" + host + end, []int{400, 404, 405}},
		{"an asterisk", "OPTIONS * HTTP/1.1\r\n" + host + end, []int{200, 400, 404, 405}},
		{"a path without a slash", "GET api HTTP/1.1\r\n" + host + end, []int{400}},
		{"a URL of 2 MiB", "GET /" + strings.Repeat("x", 2<<20) + " HTTP/1.1\r\n" + host + end, []int{closed, 431}},
		{"a query of 900 KB", "GET /api/v1/configmaps?" + strings.Repeat("a=b&", 225_000) + " HTTP/1.1\r\n" + host + end, []int{200, 400, 414, 431}},
		// Header fields.
		{"no host", "GET /api HTTP/1.1\r\n" + end, []int{400}},
		{"two hosts", "GET /api HTTP/1.1\r\n" + host + host + end, []int{400}},
		{"an invalid host", "GET /api HTTP/1.1\r\nHost: a b\x01\r\n" + end, []int{400}},
		{"a header without a colon", "GET /api HTTP/1.1\r\n" + host + "abc\r\n" + end, []int{400}},
		{"a header without a name", "GET /api HTTP/1.1\r\n" + host + ": x\r\n" + end, []int{400}},
		{"a blank before the colon", "GET /api HTTP/1.1\r\n" + host + "a : b\r\n" + end, []int{400}},
		{"a folded header", "GET /api HTTP/1.1\r\n" + host + "a: b\r\n c\r\n" + end, []int{200, 400}},
		{"a NUL in a header", "GET /api HTTP/1.1\r\n" + host + "a: b\x00c\r\n" + end, []int{400}},
		{"an invalid header name", "GET /api HTTP/1.1\r\n" + host + "a\xff: b\r\n" + end, []int{400}},
		{"a header of 2 MiB", "GET /api HTTP/1.1\r\n" + host + "a: " + strings.Repeat("x", 2<<20) + "\r\n" + end, []int{closed, 431}},
		{"100,000 headers", "GET /api HTTP/1.1\r\n" + host + many(100_000, "a: bcdefghijk\r\n") + end, []int{closed, 431}},
		{"50,000 impersonated groups", get + "Impersonate-User: bob\r\n" + many(30_000, "Impersonate-Group: g\r\n") + end, []int{400, 403, 431}},
		{"an impersonated group with a control character", get + "Impersonate-User: bob\r\nImpersonate-Group: system:masters\x7f\r\n" + end, []int{400}},
		{"an empty impersonated user beside a group", get + "Impersonate-User: \r\nImpersonate-Group: system:masters\r\n" + end, []int{400}},
		// Bodies.
		{"a body that is too short", post + "Content-Length: 100\r\n" + end + body, []int{closed, 400}},
		{"a body that is too long", post + "Content-Length: 5\r\n" + end + body, []int{400}},
		{"a negative length", post + "Content-Length: -1\r\n" + end + body, []int{400}},
		{"a length that is no number", post + "Content-Length: x\r\n" + end + body, []int{400}},
		{"a length with a sign", post + "Content-Length: +27\r\n" + end + body, []int{400}},
		{"a length of 2^64", post + "Content-Length: 18446744073709551616\r\n" + end + body, []int{400}},
		{"a length of 2^63-1", post + "Content-Length: 9223372036854775807\r\n" + end + body, []int{closed, 413}},
		{"two lengths", post + "Content-Length: 27\r\nContent-Length: 5\r\n" + end + body, []int{400}},
		{"a length and chunks", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + end + "1b\r\n" + body + "\r\n0\r\n\r\n", []int{201, 400}},
		{"an unknown transfer encoding", post + "Transfer-Encoding: gzip\r\n" + end + body, []int{400, 501}},
		{"two transfer encodings", post + "Transfer-Encoding: chunked, identity\r\n" + end + "0\r\n\r\n", []int{400, 501}},
		{"a chunk size that is no number", post + "Transfer-Encoding: chunked\r\n" + end + "zz\r\n" + body, []int{closed, 400}},
		{"a negative chunk size", post + "Transfer-Encoding: chunked\r\n" + end + "-1\r\n" + body, []int{closed, 400}},
		{"a chunk of 2^64", post + "Transfer-Encoding: chunked\r\n" + end + "ffffffffffffffffff\r\n" + body, []int{closed, 400}},
		{"a chunk that is too short", post + "Transfer-Encoding: chunked\r\n" + end + "ff\r\n" + body, []int{closed, 400}},
		{"a chunk that is too long", post + "Transfer-Encoding: chunked\r\n" + end + "5\r\n" + body + "\r\n0\r\n\r\n", []int{closed, 400}},
		{"chunks without an end", post + "Transfer-Encoding: chunked\r\n" + end + "1b\r\n" + body + "\r\n", []int{closed, 400}},
		{"a long chunk extension", post + "Transfer-Encoding: chunked\r\n" + end + "1b;" + strings.Repeat("x", 100_000) + "\r\n" + body + "\r\n0\r\n\r\n", []int{closed, 400}},
		{"tiny chunks with extensions", post + "Transfer-Encoding: chunked\r\n" + end + many(20_000, "1;"+strings.Repeat("x", 100)+"\r\n \r\n") + "0\r\n\r\n", []int{closed, 400}},
		{"invalid trailers", post + "Transfer-Encoding: chunked\r\n" + end + "1b\r\n" + body + "\r\n0\r\nno trailer\r\n\r\n", []int{closed, 201, 400}},
		{"an expectation without a body", post + "Expect: 100-continue\r\nContent-Length: 10\r\n" + end, []int{closed, 100, 400}},
		// Upgrades.
		{"a websocket without a key", exec(shake + accept), []int{400, 403}},
		{"a websocket without a version", exec(shake + key), []int{400, 403}},
		{"a websocket of version 99", exec(shake + key + "Sec-WebSocket-Version: 99\r\n"), []int{400, 403}},
		{"a websocket with a short key", exec(shake + accept + "Sec-WebSocket-Key: x\r\n"), []int{400, 403}},
		{"a websocket with an unknown protocol", exec(shake + accept + key + "Sec-WebSocket-Protocol: none\r\n"), []int{400, 403}},
		{"a websocket with 10,000 protocols", exec(shake + accept + key + "Sec-WebSocket-Protocol: " + many(10_000, "a, ") + "b\r\n"), []int{400, 403}},
		{"a websocket with a token that is not base64", exec(shake + accept + key + "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.!!!, v5.channel.k8s.io\r\n"), []int{400, 401, 403}},
		{"an upgrade of a request without streams", get + shake + end, []int{200}},
		{"an upgrade without Connection", exec("Upgrade: websocket\r\n" + accept + key), []int{400, 403}},
		{"an upgrade to something else", exec("Connection: Upgrade\r\nUpgrade: h2c\r\n"), []int{400, 403}},
		{"an upgrade to SPDY without a version", exec("Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"), []int{400, 403}},
		{"an upgrade of h2c with settings", "GET /api HTTP/1.1\r\n" + host + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + end, []int{200}},
		{"a watch by a websocket without a key", watch(shake + accept), []int{200, 400}},
		{"a watch by a websocket of version 99", watch(shake + key + "Sec-WebSocket-Version: 99\r\n"), []int{200, 400}},
		{"a watch by a websocket with an unknown protocol", watch(shake + accept + key + origin + "Sec-WebSocket-Protocol: none\r\n"), []int{101, 400, 403}},
		{"a watch by a websocket with a bad origin", watch(shake + accept + key + "Origin: \x7f://\r\n"), []int{101, 200, 400, 403}},
		{"a watch by a websocket, and noise", watch(shake+accept+key+origin) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", []int{101}},
		{"a watch by a websocket, and an endless frame", watch(shake+accept+key+origin) + "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00" + strings.Repeat("x", 100_000), []int{101}},
		// A second request in the same packet must not be taken for the body of the first.
		{"a smuggled request", post + "Content-Length: 5\r\nTransfer-Encoding:\x0bchunked\r\n" + end + "0\r\n\r\n" + get + end, []int{400}},
		{"a bare line feed", strings.ReplaceAll(post+"Content-Length: 27\r\n"+end, "\r\n", "\n") + body, []int{201, 400}},
		{"a carriage return in a header", get + "a: b\rX-Remote-User: admin\r\n" + end, []int{400}},
	} {
		m.sent++
		got, text, err := m.raw(row.send, slices.Contains(row.want, closed))
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		m.seen[got]++
		if !slices.Contains(row.want, got) {
			t.Errorf("%s: %d, want %v: %.300s", row.name, got, row.want, text)
		}
	}
	m.check("the next request", http.MethodGet, inDefault+"configmaps/target", http.Header{}, "", []int{200})
}

// raw sends bytes and returns the status and the beginning of the response. If cut is true, it closes its direction of
// the connection afterwards, which also cancels a request that is complete.
func (m *malformedServer) raw(data string, cut bool) (status int, text string, err error) {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(m.url, "https://"), m.adminTLS())
	if err != nil {
		return 0, "", fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, "", err
	}
	// The server may close the connection before it has read everything.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.WriteString(conn, data); err == nil && cut {
			_ = conn.CloseWrite()
		}
	}()
	defer func() { conn.Close(); <-sent }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return 0, "", fmt.Errorf("the server neither responds nor closes the connection: %w", err)
	case err != nil:
		return closed, err.Error(), nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		_, err := io.Copy(io.Discard, conn)
		if errors.As(err, &late) && late.Timeout() {
			return 0, "", fmt.Errorf("the upgraded connection stays open: %w", err)
		}
		return resp.StatusCode, "", nil
	}
	start, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	return resp.StatusCode, string(start), nil
}
