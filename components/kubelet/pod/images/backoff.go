package images

import (
	"sync"
	"time"
)

// pullBase and pullMax are the first and the longest delay before a failed image pull is tried again.
const (
	pullBase = 10 * time.Second
	pullMax  = 300 * time.Second
)

// backoffs has the exponential back-offs of failed image pulls, by pod UID and image. The zero value has
// none. Its methods are safe for concurrent use.
type backoffs struct {
	mu    sync.Mutex
	byKey map[string]backoff
}

// backoff is the back-off of one image in one pod: no pull is tried for delay after updated, the time of the last
// failure.
type backoff struct {
	delay     time.Duration
	updated   time.Time
	lastError string // text of the last error
}

// expired reports whether the last failure is so long ago that the next one starts with pullBase again.
func (b *backoff) expired(now time.Time) bool { return now.Sub(b.updated) > 2*pullMax }

// backoffUntil returns until when pulls must wait, and the text of the last error. key is the pod's UID and the
// image. The time is zero if a pull may start.
func (s *backoffs) backoffUntil(key string, now time.Time) (until time.Time, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.byKey[key]
	if until = b.updated.Add(b.delay); !ok || b.expired(now) || !now.Before(until) {
		return time.Time{}, ""
	}
	return until, b.lastError
}

// increase doubles the back-off of key, the pod's UID and the image, after a pull has failed at now. The first
// failure sets it to pullBase. text is the error. It also removes all expired back-offs.
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

// reset removes the back-off of key, the pod's UID and the image, after a successful pull.
func (s *backoffs) reset(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}
