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

// TestManyKeys checks that a custom resource which is too large because of the managed fields of its
// many keys is rejected before admission, and that one of the largest size that fits is stored.
func TestManyKeys(t *testing.T) {
	s, address := startOnNetwork(t, apiserver.Config{})
	c := customOf(t, s)
	const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: %[1]ss, kind: %[2]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-map-type: %[3]s
            additionalProperties: {type: string, maxLength: 1}
`
	c.define(fmt.Sprintf(definition, "bag", "Bag", "granular"), "Established=True")
	c.define(fmt.Sprintf(definition, "box", "Box", "atomic"), "Established=True")
	object := func(kind string, keys int, value string) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":"many"},"spec":{`, kind)
		for i := range keys {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"k%06d":%q`, i, value)
		}
		b.WriteString("}}")
		return b.Bytes()
	}
	for _, tt := range []struct {
		name, method, path, media string
		body                      []byte
		want                      int
	}{
		// Each value is invalid, so the size is checked before the validation.
		{"create", "POST", "/bags", jsn, object("Bag", 120_000, "long"), 413},
		{"apply", "PATCH", "/bags/many?fieldManager=m", ssa, object("Bag", 120_000, "long"), 413},
		{"create that fits", "POST", "/bags", jsn, object("Bag", 40_000, "v"), 201},
		{"update", "PUT", "/bags/many", jsn, object("Bag", 180_000, "long"), 413},
		{"create that fits with one managed field", "POST", "/boxs", jsn, object("Box", 90_000, "v"), 201},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := roundTrip(t, true, newRequest(t, tt.method, "https://"+address+"/apis/example.com/v1/namespaces/default"+tt.path, tt.media, bytes.NewReader(tt.body)))
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.want {
				t.Errorf("%d instead of %d: %.200s", resp.StatusCode, tt.want, data)
			}
		})
	}
}

// TestLargeDefinition checks that server-side apply creates a CustomResourceDefinition whose request is large.
func TestLargeDefinition(t *testing.T) {
	_, address := startOnNetwork(t, apiserver.Config{})
	body := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"larges.example.com"},"spec":{
		"group":"example.com","scope":"Namespaced","names":{"plural":"larges","kind":"Large"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","description":%q}}}]}}`, strings.Repeat("d", 200<<10))
	resp := roundTrip(t, true, newRequest(t, "PATCH", "https://"+address+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/larges.example.com?fieldManager=m", ssa, strings.NewReader(body)))
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
		t.Errorf("%d, %v: %.200s", resp.StatusCode, err, data)
	}
}
