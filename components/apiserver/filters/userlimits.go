package filters

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/fairness"
	"hyperkube/components/apiserver/request"
)

// Limits on what a user's requests may occupy while they hold no seats: request bodies that are
// still being received or wait for seats, and responses that the client has not read yet. Seats are
// for active work, so slow clients must not hold them. But waiting data occupies memory, so it is
// limited per user.
const (
	// maxWaiting is the maximum number of one user's pending request bodies.
	maxWaiting = 500
	// maxWaitingBytes is the total size of the received parts of one user's pending request bodies.
	maxWaitingBytes = 64 << 20
	// slowAfter is the time after which sending a response counts as slow.
	slowAfter = 5 * time.Second
	// maxSlow is the maximum number of one user's slow responses.
	maxSlow = 100
	// maxSlowBytes is the memory that only one user's slow responses use.
	maxSlowBytes = 64 << 20
	// maxBody is the maximum size of bodies that are read ahead. It is upstream's limit for
	// resource requests.
	maxBody = 3 << 20
)

// userLimits tracks the pending data of each API user: request bodies that are being received or wait
// for seats, and slow responses. Seats are the units of concurrency of API Priority and Fairness. The
// zero value is ready to use.
type userLimits struct {
	mu sync.Mutex
	// users only contains users with pending data.
	users map[string]*userUsage
}

// userUsage contains the numbers and the total size of one user's pending request bodies and slow responses.
type userUsage struct {
	// bodies is the number of pending request bodies, bytes the total size of their received parts.
	bodies int
	bytes  int64
	// slow responses, oldest first.
	slow []*slowResponse
}

// slowResponse is a response that the client has not received after slowAfter.
type slowResponse struct {
	private int    // memory in bytes that only this response uses
	cut     func() // aborts the response
}

// usageOf returns the usage of a user and adds it if needed. After changing it, the caller must
// pass it to removeIfEmpty. The caller holds mu.
func (s *userLimits) usageOf(name string) *userUsage {
	u := s.users[name]
	if u == nil {
		if s.users == nil {
			s.users = map[string]*userUsage{}
		}
		u = &userUsage{}
		s.users[name] = u
	}
	return u
}

// removeIfEmpty removes the usage of a user without pending data. The caller holds mu.
func (s *userLimits) removeIfEmpty(name string, u *userUsage) {
	if u.bodies == 0 && len(u.slow) == 0 {
		delete(s.users, name)
	}
}

// tooManyBodies is the error with which readAhead stops reading a body because the user has too
// many pending bodies. Clients get the response 429 instead.
type tooManyBodies struct{}

// Error returns the reason why the request is rejected.
func (tooManyBodies) Error() string { return "too many bodies are waited for" }

// readAhead reads the body of a write request before the request waits for API Priority and Fairness seats, so that
// slow clients do not occupy seats. The body counts against the user's limits until the caller calls begun, when the
// request has its seats. Further calls of begun have no effect. If the limits are exceeded, readAhead responds with
// 429 and returns false. It does not read ahead bodies above maxBody, of unauthenticated users, and of requests for
// other paths than resources.
func (s *userLimits) readAhead(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info) (begun func(), ok bool) {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 || req.ContentLength > maxBody ||
		!info.IsResourceRequest || request.LongRunning(info) || slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
		return func() {}, true
	}
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return func() {}, true
	}
	name := u.GetName()
	counted, held := false, int64(0)
	err := request.ReadBody(req, maxBody, func(n int) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		mine := s.usageOf(name)
		if !counted && mine.bodies >= maxWaiting || mine.bytes+int64(n)-held > maxWaitingBytes {
			s.removeIfEmpty(name, mine)
			return tooManyBodies{}
		}
		if !counted {
			counted = true
			mine.bodies++
		}
		mine.bytes += int64(n) - held
		held = int64(n)
		return nil
	})
	begun = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !counted {
			return
		}
		counted = false
		mine := s.usageOf(name)
		mine.bodies--
		mine.bytes -= held
		s.removeIfEmpty(name, mine)
	}
	if err != nil {
		begun()
		fairness.TooMany(w, 1)
		return nil, false
	}
	return begun, true
}

// send calls the function send, which writes the response to the user with the name. If that takes longer than
// slowAfter, the response counts as slow. If the user then has too many slow responses, the oldest ones are aborted.
// private is the number of bytes of memory that only this response uses.
func (s *userLimits) send(w http.ResponseWriter, name string, private int, send func()) {
	a := &slowResponse{private: private, cut: func() {
		// in-process writers have no deadline and need none
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
	}}
	done := false // guarded by s.mu
	slow := time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if done {
			return
		}
		mine := s.usageOf(name)
		mine.slow = append(mine.slow, a)
		sum := 0
		for _, other := range mine.slow {
			sum += other.private
		}
		// A single response may have any size.
		for len(mine.slow) > 1 && (len(mine.slow) > maxSlow || sum > maxSlowBytes) {
			sum -= mine.slow[0].private
			mine.slow[0].cut()
			mine.slow = mine.slow[1:]
		}
	})
	defer func() {
		slow.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		done = true
		if mine := s.users[name]; mine != nil {
			mine.slow = slices.DeleteFunc(mine.slow, func(other *slowResponse) bool { return other == a })
			s.removeIfEmpty(name, mine)
		}
	}()
	send()
}
