package hello

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func serve(t *testing.T, cfg Config) string {
	t.Helper()
	cfg.Address = "127.0.0.1:0"
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return server.URL
}

func TestWhoami(t *testing.T) {
	t.Setenv("POD_NAME", "web-1")
	url := serve(t, Config{})
	req, _ := http.NewRequest(http.MethodGet, url+"/some/path", nil)
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got answer
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Pod != "web-1" || got.Path != "/some/path" || got.Message != "Hello" || got.Requests != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestHealthOnDemand(t *testing.T) {
	url := serve(t, Config{})
	for _, path := range []string{"/healthz", "/readyz"} {
		want := func(status int) {
			t.Helper()
			resp, err := http.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%s: status %d, want %d", path, resp.StatusCode, status)
			}
		}
		want(http.StatusOK)
		post(t, url+path+"?ok=false")
		want(http.StatusServiceUnavailable)
		post(t, url+path+"?ok=true")
		want(http.StatusOK)
	}
}

func TestCrash(t *testing.T) {
	code := -1
	url := serve(t, Config{Exit: func(c int) { code = c }})
	post(t, url+"/crash?code=7")
	if code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

func TestRunStops(t *testing.T) {
	s, err := New(Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func post(t *testing.T, url string) {
	t.Helper()
	resp, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}
