package images

import (
	"sync"
	"time"
)

const (
	pullBase = 10 * time.Second
	pullMax  = 300 * time.Second
)

// backoffs are how long pods wait before they ask again for images that could not be
// pulled: twice as long each time. The zero value has none; its methods are safe for
// several goroutines.
type backoffs struct {
	mu sync.Mutex
	of map[string]backoff
}

type backoff struct {
	delay   time.Duration
	updated time.Time
	last    string // the error's text
}

// over tells whether it was so long ago that nothing is to be made of it any more.
func (b *backoff) over(now time.Time) bool { return now.Sub(b.updated) > 2*pullMax }

// waits is until when key has to wait, zero if it has not, and the last error.
func (s *backoffs) waits(key string, now time.Time) (until time.Time, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.of[key]
	if until = b.updated.Add(b.delay); !ok || b.over(now) || !now.Before(until) {
		return time.Time{}, ""
	}
	return until, b.last
}

// failed has key wait, and forgets what is over.
func (s *backoffs) failed(key, text string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, b := range s.of {
		if b.over(now) {
			delete(s.of, k)
		}
	}
	if s.of == nil {
		s.of = map[string]backoff{}
	}
	delay := pullBase
	if b, ok := s.of[key]; ok {
		delay = min(2*b.delay, pullMax)
	}
	s.of[key] = backoff{delay, now, text}
}

// forget has key wait no more.
func (s *backoffs) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, key)
}
