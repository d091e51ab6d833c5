package integration

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver"
)

// TestLargeBody: the response to a request whose body is too large reaches each client.
func TestLargeBody(t *testing.T) {
	_, address := startOnNetwork(t, apiserver.Config{})
	body := []byte(`{"metadata":{"name":"large"},"data":{"k":"` + strings.Repeat("v", 12<<20) + `"}}`)
	check := func(t *testing.T, resp *http.Response) {
		t.Helper()
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var status metav1.Status
		if err := json.Unmarshal(data, &status); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 413 || status.Reason != metav1.StatusReasonRequestEntityTooLarge || status.Message != "Request entity too large: limit is 3145728" {
			t.Errorf("%d %s", resp.StatusCode, data)
		}
	}
	for _, c := range []struct{ name, method, path, media string }{
		{"create", "POST", cms, jsn},
		{"update", "PUT", cms + "/large", jsn},
		{"patch", "PATCH", cms + "/large", mrg},
		{"apply", "PATCH", cms + "/large?fieldManager=m", ssa},
		{"delete", "DELETE", cms + "/large", jsn},
	} {
		for _, length := range []int64{int64(len(body)), -1} {
			// The client sends all of the body before it reads.
			t.Run(fmt.Sprintf("HTTP/1.1 %s of length %d", c.name, length), func(t *testing.T) {
				conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				req := newRequest(t, c.method, "https://"+address+c.path, c.media, bytes.NewReader(body))
				req.ContentLength = length
				if err := req.Write(conn); err != nil {
					t.Fatalf("sending the body: %v", err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), req)
				if err != nil {
					t.Fatalf("reading the response: %v", err)
				}
				check(t, resp)
			})
			t.Run(fmt.Sprintf("HTTP/2 %s of length %d", c.name, length), func(t *testing.T) {
				req := newRequest(t, c.method, "https://"+address+c.path, c.media, bytes.NewReader(body))
				req.ContentLength = length
				check(t, roundTrip(t, true, req))
			})
		}
	}
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("100-continue, HTTP/2 %v", http2), func(t *testing.T) {
			req := newRequest(t, "POST", "https://"+address+cms, jsn, bytes.NewReader(body))
			req.Header.Set("Expect", "100-continue")
			req.ContentLength = int64(len(body))
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got100Continue: func() { t.Error("the server asks for the body") },
			}))
			check(t, roundTrip(t, http2, req))
		})
	}
}

func newRequest(t *testing.T, method, url, media string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, io.NopCloser(body))
	if err != nil {
		t.Fatal(err)
	}
	name, value, _ := strings.Cut(media, ": ")
	req.Header.Set(name, value)
	return req
}

// roundTrip sends a request over a new connection.
func roundTrip(t *testing.T, http2 bool, req *http.Request) *http.Response {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: new(http.Protocols),
		ExpectContinueTimeout: time.Minute,
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
