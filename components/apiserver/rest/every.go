package rest

import (
	"sync"
	"time"
)

// callEvery calls f at an interval until stop is called. No goroutine waits between the calls.
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
