package plainhttp

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"hyperkube/internal/testing/testport"
)

func TestServe(t *testing.T) {
	address := testport.Address(t)
	s, err := Serve(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(body) != "ok" {
		t.Errorf("answered %q, %v", body, err)
	}
	if _, err := Serve(address, http.NotFoundHandler()); err == nil {
		t.Error("two servers listen on one address")
	}
	s.Close()
	s.Close()
	<-s.Done()
	if err := s.Err(); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Err returned %v", err)
	}
}
