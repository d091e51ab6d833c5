package rest

import (
	"sync"
	"time"
)

// callEvery calls f every d, for the first time after d, until stop is called. It uses a timer, so no goroutine waits
// between the calls. A call that is in progress may continue after stop has returned.
func callEvery(d time.Duration, f func()) (stop func()) {
	var (
		mu      sync.Mutex
		stopped bool
		timer   *time.Timer
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(d, func() {
		f()
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			timer.Reset(d)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}
