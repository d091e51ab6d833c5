package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"sync"
	"time"
)

// maxSessions limits the number of sessions. When it is reached, the session that expires first is deleted.
const maxSessions = 1000

// session is a browser that has logged in.
//
// Two secrets identify it. A browser sends the cookie to every server of the host, whatever its port, so another server on
// this machine may receive it. The header token is stored by the page, which only this server's origin can read. Requests
// to the API need both.
type session struct {
	cookie string
	header string
	// upstream sends requests to the API server as the user of the session.
	upstream *upstream
	expires  time.Time // zero if it does not expire
	// done is closed when the session is deleted, so that its streams stop.
	done chan struct{}
}

// sessions are the sessions of a server. They exist in memory only. It is safe for concurrent use.
type sessions struct {
	lifetime time.Duration // 0 if sessions do not expire
	now      func() time.Time

	mu       sync.Mutex
	byCookie map[string]*session
}

func newSessions(lifetime time.Duration) *sessions {
	return &sessions{lifetime: lifetime, now: time.Now, byCookie: map[string]*session{}}
}

// create adds a session for a user, whose requests up sends.
func (s *sessions) create(up *upstream) *session {
	created := &session{cookie: secret(), header: secret(), upstream: up, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifetime > 0 {
		created.expires = s.now().Add(s.lifetime)
	}
	s.prune()
	s.byCookie[created.cookie] = created
	return created
}

// prune deletes expired sessions and, if there are maxSessions, the one that expires first. The caller holds s.mu.
func (s *sessions) prune() {
	var first *session
	for _, one := range s.byCookie {
		if s.expired(one) {
			s.remove(one)
		} else if first == nil || one.expires.Before(first.expires) {
			first = one
		}
	}
	if len(s.byCookie) >= maxSessions {
		s.remove(first)
	}
}

func (s *sessions) expired(one *session) bool {
	return !one.expires.IsZero() && !s.now().Before(one.expires)
}

// remove deletes a session. The caller holds s.mu.
func (s *sessions) remove(one *session) {
	delete(s.byCookie, one.cookie)
	close(one.done)
}

// find returns the session with the cookie and the header token, or nil if there is none, or if it has expired.
func (s *sessions) find(cookie, header string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The lookup by cookie does not take constant time, but cookies are random, so a guess reveals nothing about another.
	found := s.byCookie[cookie]
	if found == nil || subtle.ConstantTimeCompare([]byte(found.header), []byte(header)) != 1 {
		return nil
	}
	if s.expired(found) {
		s.remove(found)
		return nil
	}
	return found
}

// delete ends a session and its streams. It does nothing if the session has been deleted before.
func (s *sessions) delete(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byCookie[one.cookie] == one {
		s.remove(one)
	}
}

// onceToken is a token that can be exchanged for a session once. It is safe for concurrent use.
type onceToken struct {
	mu    sync.Mutex
	value string // empty after it was used
}

// use reports whether got is the token and has not been used before.
func (t *onceToken) use(got string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.value == "" || subtle.ConstantTimeCompare([]byte(t.value), []byte(got)) != 1 {
		return false
	}
	t.value = ""
	return true
}

// secret returns 256 random bits that can be part of a URL, a cookie and a WebSocket subprotocol.
func secret() string {
	data := make([]byte, 32)
	_, _ = rand.Read(data) // never fails
	return base64.RawURLEncoding.EncodeToString(data)
}
