package rest

import (
	"sync"
	"time"
)

// every calls f again and again, without a goroutine that waits in between,
// until stop is called.
func every(d time.Duration, f func()) (stop func()) {
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
