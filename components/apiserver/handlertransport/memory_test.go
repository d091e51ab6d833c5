package handlertransport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func request(t *testing.T, ctx context.Context, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://x"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestTransport(t *testing.T) {
	gone := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("X-A", "b")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("X-Late", "c")
		_, _ = io.Copy(w, req.Body)
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintln(w, "one")
		w.(http.Flusher).Flush()
		fmt.Fprintln(w, "two")
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		close(gone)
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("oh") })
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello ")
		line, err := rw.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(conn, line)
	})
	for _, brief := range []bool{false, true} {
		tr := &Transport{Handler: mux, Short: func(*http.Request) bool { return brief }}
		resp, err := tr.RoundTrip(request(t, t.Context(), "/echo", strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		if err != nil || string(data) != "body" || resp.StatusCode != 202 || resp.Header.Get("X-A") != "b" || resp.Header.Get("X-Late") != "" {
			t.Errorf("%v %q %+v", err, data, resp)
		}
		if _, err := tr.RoundTrip(request(t, t.Context(), "/panic", nil)); err == nil {
			t.Error("the panic was not propagated")
		}
	}
	tr := &Transport{Handler: mux}
	t.Run("stream", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		resp, err := tr.RoundTrip(request(t, ctx, "/stream", nil))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for _, want := range []string{"one", "two"} {
			if !lines.Scan() || lines.Text() != want {
				t.Errorf("%q", lines.Text())
			}
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		<-gone
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		slow := &Transport{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })}
		resp, err := slow.RoundTrip(request(t, ctx, "/", nil))
		if err == nil {
			resp.Body.Close() // it may be complete before the cancellation is noticed
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	t.Run("upgrade", func(t *testing.T) {
		resp, err := tr.RoundTrip(request(t, t.Context(), "/upgrade", nil))
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v %v", resp, err)
		}
		conn := resp.Body.(io.ReadWriteCloser)
		go fmt.Fprintln(conn, "world")
		data, err := io.ReadAll(conn)
		if err != nil || string(data) != "hello world\n" {
			t.Errorf("%q %v", data, err)
		}
		conn.Close()
	})
}

// TestClientGone checks that a handler whose client is gone before the response starts does not
// block forever in a write.
func TestClientGone(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, left <-chan struct{}) error{
		"stream": func(w http.ResponseWriter, left <-chan struct{}) error {
			<-left
			w.(http.Flusher).Flush()
			_, err := fmt.Fprintln(w, "one")
			return err
		},
		"late stream": func(w http.ResponseWriter, left <-chan struct{}) error {
			fmt.Fprintln(w, "one")
			<-left
			w.(http.Flusher).Flush()
			_, err := fmt.Fprintln(w, "two")
			return err
		},
		"connection": func(w http.ResponseWriter, left <-chan struct{}) error {
			<-left
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return err
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, err = fmt.Fprintln(conn, "hello")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			left, begun, failed := make(chan struct{}), make(chan struct{}), make(chan error)
			tr := &Transport{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				close(begun)
				failed <- answer(w, left)
			})}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-begun; cancel() }()
			if _, err := tr.RoundTrip(request(t, ctx, "/", nil)); !errors.Is(err, context.Canceled) { //nolint:bodyclose // there is none
				t.Errorf("answered with %v", err)
			}
			close(left)
			if err := <-failed; err == nil {
				t.Error("the write did not fail")
			}
		})
	}
}
