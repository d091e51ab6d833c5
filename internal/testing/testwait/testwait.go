// Package testwait polls for conditions without an event, such as the state of another process, the
// kernel or an informer. If there is an event, tests must wait for that instead.
package testwait

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"
)

// slowEnv is the environment variable with the factor by which the machine is slower than one that is not emulated.
const slowEnv = "HYPERKUBE_E2E_SLOW"

// Scale returns d, the timeout on a usual machine, for this machine: it multiplies d by the value of $HYPERKUBE_E2E_SLOW
// if that is a positive number.
func Scale(d time.Duration) time.Duration {
	factor, err := strconv.Atoi(os.Getenv(slowEnv))
	if err != nil || factor < 1 {
		return d
	}
	return d * time.Duration(factor)
}

// timeout is the time after which the test fails; on machines that are much slower than usual it is longer, see Scale.
// It is much longer than any condition should take, because the machine may be busy. The interval between checks grows
// from minInterval to maxInterval, so that early changes are detected fast, and late ones are not delayed by the
// polling.
const (
	timeout     = 2 * time.Minute
	minInterval = time.Millisecond
	maxInterval = 20 * time.Millisecond
)

// Until calls is repeatedly and returns when it returns true. After the timeout it fails t with a
// message that contains what, a description of the condition. Call it from the test's goroutine,
// like t.Fatal.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	Succeed(t, what, func() error {
		if is() {
			return nil
		}
		return errNotYet
	})
}

// errNotYet is the error for which Until calls its condition again.
var errNotYet = errors.New("condition not met")

// Succeed calls f repeatedly and returns when it returns nil. After the timeout it fails t with
// what and the last error of f. Call it from the test's goroutine, like t.Fatal.
func Succeed(t testing.TB, what string, f func() error) {
	t.Helper()
	pause := minInterval
	limit := max(timeout, Scale(timeout/10)) // the timeout has a large reserve
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s: %v", what, err)
		}
		pause = min(2*pause, maxInterval)
	}
}
