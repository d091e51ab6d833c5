// Package testport allocates ports for tests and benchmarks of servers that cannot use port 0,
// because the port must be known before they listen, for example for a certificate, a flag or the
// configuration of another server.
//
// A port that was found by listening on port 0 is in the ephemeral range, so another process can
// use it for an outgoing connection before the server listens. The ports of this package are below
// that range, and no two processes get the same one.
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
	// minPort and maxPort are the bounds of the port range. It is above well-known ports and below
	// node ports (30000) and the kernel's ephemeral range (32768).
	minPort, maxPort = 20000, 29999
	// maxAttempts is the maximum number of ports that Claim checks before it returns an error.
	maxAttempts = 1000
)

// Claim reserves a port on which no process listens, neither with TCP nor with UDP, at any address
// of this network namespace. The reservation ends when release is called or garbage collected, or
// the process exits. It only affects other calls of Claim and does not prevent other programs from
// listening. Claim is safe for concurrent use.
func Claim() (port int, release func(), err error) {
	for range maxAttempts {
		port := minPort + rand.IntN(maxPort-minPort+1)
		// An abstract socket belongs to the network namespace, like ports, and is removed when its
		// process exits.
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
	return 0, nil, fmt.Errorf("no free port in %d-%d after %d tries", minPort, maxPort, maxAttempts)
}

// ClaimAll reserves n ports like Claim and returns them as text. release releases all of them.
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

// free reports whether a server can listen on port with both protocols.
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

// Port reserves a port with Claim until the test is finished and returns it. It fails the test if
// no port is free.
func Port(t testing.TB) int {
	t.Helper()
	port, release, err := Claim()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// Address returns 127.0.0.1 with a port that is reserved until the test is finished.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Port(t)))
}
