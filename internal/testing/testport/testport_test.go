package testport

import (
	"net"
	"testing"
)

func TestClaim(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port := Port(t)
		if seen[port] {
			t.Fatalf("port %d was allocated twice", port)
		}
		seen[port] = true
	}
}

func TestRelease(t *testing.T) {
	port, release, err := Claim()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
	if err != nil {
		t.Fatalf("a claimed port is not free: %v", err)
	}
	if free(port) {
		t.Error("a port in use is reported as free")
	}
	l.Close()
	release()
}
