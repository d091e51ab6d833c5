package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"hyperkube/internal/testport"
)

// TestHealthPortTaken: the health of a service is told as soon as its port is free.
func TestHealthPortTaken(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	h := newHealth(Config{Log: log}, newMetrics())
	port, release, err := testport.Claim()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	other, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	h.serveServices(map[string]*serviceHealth{"ns/web": {port: uint16(port), local: 1}})
	if !h.waits() || len(h.services) > 0 {
		t.Fatalf("%v, waiting %v", h.services, h.waiting)
	}
	h.serveWaiting()
	if !h.waits() {
		t.Fatal("it is forgotten after the second time")
	}
	other.Close()
	h.serveWaiting()
	if h.waits() {
		t.Fatal("the port is free and not listened on")
	}
	h.succeeded()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	h.serveServices(map[string]*serviceHealth{"ns/web": nil})
	// One that goes while it waits does not come back.
	h.waiting["ns/gone"] = &serviceHealth{port: uint16(port)}
	h.serveServices(map[string]*serviceHealth{"ns/gone": nil})
	if h.waits() || len(h.services) > 0 {
		t.Errorf("%v, waiting %v", h.services, h.waiting)
	}
}
