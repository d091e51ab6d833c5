// Package testport gives tests and benchmarks the ports of servers that cannot
// be told to take any: those which are named in a certificate, a flag or another
// server's configuration before they listen.
//
// A port that was found free by listening on port 0 and closing again comes from
// the range of outgoing connections, and until it is used the next connection of
// any other process may take it. These ports lie below that range, and no two
// processes are given the same one.
package testport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

const (
	// lowest and highest bound the ports: above those that services are known
	// by, below node ports (30000) and the kernel's ephemeral range (32768).
	lowest, highest = 20000, 29999
	// tries is how many ports are looked at before giving up.
	tries = 1000
)

// Claim holds a port that nothing listens on, neither by TCP nor by UDP, at any
// address of this network namespace. It is held until release is called or the
// process ends; a release that nobody keeps gives the port back at any time. Only
// who claims respects it: it does not keep others from listening. It is safe for
// concurrent use.
func Claim() (port int, release func(), err error) {
	for range tries {
		port := lowest + rand.IntN(highest-lowest+1)
		// An abstract socket belongs to the network namespace, as ports do, and
		// goes with its process.
		mark, err := net.Listen("unix", "@hyperkube-test-port-"+strconv.Itoa(port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, nil, fmt.Errorf("claiming port %d: %w", port, err)
		}
		if free(port) {
			return port, func() { _ = mark.Close() }, nil
		}
		_ = mark.Close()
	}
	return 0, nil, fmt.Errorf("no free port in %d-%d after %d tries", lowest, highest, tries)
}

// ClaimAll holds so many ports, in the way of Claim; release is of all of them.
func ClaimAll(n int) (ports []string, release func(), err error) {
	var releases []func()
	release = func() {
		for _, f := range releases {
			f()
		}
	}
	for range n {
		port, f, err := Claim()
		if err != nil {
			release()
			return nil, nil, err
		}
		ports, releases = append(ports, strconv.Itoa(port)), append(releases, f)
	}
	return ports, release, nil
}

// free tells whether a server may listen on port for both protocols.
func free(port int) bool {
	address := net.JoinHostPort("", strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return p.Close() == nil
}

// Port is a port of Claim that belongs to the test until it has ended.
func Port(t testing.TB) int {
	t.Helper()
	port, release, err := Claim()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// Address is 127.0.0.1 with a port of Port.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Port(t)))
}
