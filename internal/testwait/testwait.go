// Package testwait waits in tests for what nothing tells them: another process, the
// kernel, an informer that has heard. Where there is an event, a test waits for that.
package testwait

import (
	"errors"
	"testing"
	"time"
)

// bound is how long is waited before the test fails: far longer than anything should take,
// for a machine may do much else. Between two looks pass shortest to longest, so that
// what comes soon is seen soon, and what comes late is not kept from coming.
const (
	bound    = 2 * time.Minute
	shortest = time.Millisecond
	longest  = 20 * time.Millisecond
)

// Until returns when is says so, and else fails t, naming what has not come. It is for the
// test's own goroutine, as t.Fatal is.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	Succeed(t, what, func() error {
		if is() {
			return nil
		}
		return errNotYet
	})
}

var errNotYet = errors.New("it did not come")

// Succeed returns when f returns nil, and else fails t with what f said last. It is for
// the test's own goroutine, as t.Fatal is.
func Succeed(t testing.TB, what string, f func() error) {
	t.Helper()
	pause := shortest
	for end := time.Now().Add(bound); ; time.Sleep(pause) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
		pause = min(2*pause, longest)
	}
}
