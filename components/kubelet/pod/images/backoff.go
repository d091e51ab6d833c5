package images

import (
	"sync"
	"time"
)

const (
	pullBase = 10 * time.Second
	pullMax  = 300 * time.Second
)

// backoffs is the exponential back-off of failed image pulls, by pod and image. The zero value is
// empty. Its methods are safe for concurrent use.
type backoffs struct {
	mu    sync.Mutex
	byKey map[string]backoff
}

type backoff struct {
	delay     time.Duration
	updated   time.Time
	lastError string // text of the last error
}

// expired reports whether the back-off has expired and is reset.
func (b *backoff) expired(now time.Time) bool { return now.Sub(b.updated) > 2*pullMax }

// backoffUntil returns until when key is in back-off and its last error. The time is zero if key is not in
// back-off.
func (s *backoffs) backoffUntil(key string, now time.Time) (until time.Time, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.byKey[key]
	if until = b.updated.Add(b.delay); !ok || b.expired(now) || !now.Before(until) {
		return time.Time{}, ""
	}
	return until, b.lastError
}

// increase increases the back-off of key and removes expired back-offs.
func (s *backoffs) increase(key, text string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, b := range s.byKey {
		if b.expired(now) {
			delete(s.byKey, k)
		}
	}
	if s.byKey == nil {
		s.byKey = map[string]backoff{}
	}
	delay := pullBase
	if b, ok := s.byKey[key]; ok {
		delay = min(2*b.delay, pullMax)
	}
	s.byKey[key] = backoff{delay, now, text}
}

// reset resets the back-off of key.
func (s *backoffs) reset(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}
