package testwait

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a testing.TB whose Fatal methods record the message and exit the goroutine.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []time.Duration{0, minInterval, time.Second, timeout} {
			begun := time.Now()
			Until(t, "the time", func() bool { return time.Since(begun) >= late })
			if after := time.Since(begun) - late; after > maxInterval {
				t.Errorf("condition met after %s was detected %s later", late, after)
			}
		}
	})
}

func TestTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		wait func(t testing.TB)
		want string
	}{
		"until":   {func(t testing.TB) { Until(t, "rain", func() bool { return false }) }, "timed out waiting for rain: condition not met"},
		"succeed": {func(t testing.TB) { Succeed(t, "rain", func() error { return errors.New("sun") }) }, "timed out waiting for rain: sun"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failing{TB: t}
				begun := time.Now()
				go c.wait(f)
				time.Sleep(timeout + time.Minute)
				synctest.Wait()
				if f.said != c.want {
					t.Errorf("after %s it said %q", time.Since(begun), f.said)
				}
			})
		})
	}
}
