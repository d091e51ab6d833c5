// Package testnetns provides separate network namespaces for tests, in which they can create links,
// routes and rules without changing the machine.
package testnetns

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter moves the calling goroutine, which must be the test's, to a new network namespace.
// Goroutines that it starts run in the machine's namespace. Without root, the test is skipped.
func Enter(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if err := unshare(); err != nil {
		t.Fatal(err)
	}
}

// unshare moves the calling thread to a new namespace. The thread is never unlocked, so it exits
// together with its goroutine, and the namespace is removed.
func unshare() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("creating network namespace: %w", err)
	}
	return nil
}

// Namespace is a network namespace in addition to that of the test. A dedicated thread keeps it
// alive.
type Namespace struct {
	thread int
	do     chan func()
}

// New creates a namespace that exists until the test is finished.
func New(t testing.TB) *Namespace {
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

// Thread returns the ID of the thread in the namespace, with which netlink identifies the namespace
// when a link is moved to it.
func (n *Namespace) Thread() int { return n.thread }

// Path returns the path of the file in /proc that refers to the namespace.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), n.thread)
}

// Run runs f in the namespace and waits for it. f must not exit its goroutine, as the Fatal methods
// of a test do.
func (n *Namespace) Run(f func()) {
	done := make(chan struct{})
	n.do <- func() { defer close(done); f() }
	<-done
}

// Serve accepts connections from l until l is closed. It sends reply(address of the client) on each
// one and closes it.
func Serve(l net.Listener, reply func(caller string) string) {
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
