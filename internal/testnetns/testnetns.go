// Package testnetns gives tests network namespaces of their own, in which they can
// make links, routes and rules without touching the machine's.
package testnetns

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter moves the calling goroutine, the test's, into a new network namespace, in
// which it stays; goroutines that it starts are in the machine's. Without root the
// test is skipped.
func Enter(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if err := unshare(); err != nil {
		t.Fatal(err)
	}
}

// unshare gives the calling thread a new namespace. It is never unlocked: it ends
// with its goroutine, and the namespace with it.
func unshare() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making a network namespace: %w", err)
	}
	return nil
}

// Namespace is a further network namespace. A thread of its own holds it.
type Namespace struct {
	thread int
	do     chan func()
}

// New makes a namespace, which is there until the test has ended.
func New(t *testing.T) *Namespace {
	t.Helper()
	n := &Namespace{do: make(chan func())}
	made := make(chan error)
	go func() {
		err := unshare()
		n.thread = unix.Gettid()
		made <- err
		for f := range n.do {
			f()
		}
	}()
	t.Cleanup(func() { close(n.do) })
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	return n
}

// Thread returns the number of the thread that holds the namespace, by which links
// are moved there.
func (n *Namespace) Thread() int { return n.thread }

// Path returns the file that stands for the namespace.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), n.thread)
}

// At runs f in the namespace, and returns when it is done. f must not end its
// goroutine, as the Fatal methods of a test do.
func (n *Namespace) At(f func()) {
	done := make(chan struct{})
	n.do <- func() { defer close(done); f() }
	<-done
}

// Answer answers each connection to l with what reply makes of the caller's address,
// until l is closed.
func Answer(l net.Listener, reply func(caller string) string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		caller, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		fmt.Fprint(conn, reply(caller))
		conn.Close()
	}
}
