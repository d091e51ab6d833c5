package testwait

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that fails, and ends its goroutine as one does.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntilReturnsSoonAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []time.Duration{0, shortest, time.Second, bound} {
			begun := time.Now()
			Until(t, "the time", func() bool { return time.Since(begun) >= late })
			if after := time.Since(begun) - late; after > longest {
				t.Errorf("what comes after %s is seen %s later", late, after)
			}
		}
	})
}

func TestFailsInTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		wait func(t testing.TB)
		want string
	}{
		"until":   {func(t testing.TB) { Until(t, "rain", func() bool { return false }) }, "waited in vain for rain: it did not come"},
		"succeed": {func(t testing.TB) { Succeed(t, "rain", func() error { return errors.New("sun") }) }, "waited in vain for rain: sun"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failing{TB: t}
				begun := time.Now()
				go c.wait(f)
				time.Sleep(bound + time.Minute)
				synctest.Wait()
				if f.said != c.want {
					t.Errorf("after %s it said %q", time.Since(begun), f.said)
				}
			})
		})
	}
}
