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

// What a client may have going on while its requests hold no seats: bodies
// whose requests have not begun, for they are still to come or wait for seats, and answers that have not been taken. Seats are for
// work, and who is slow on purpose shall not hold them; but what waits costs
// memory, so that each user may have only so much of it.
const (
	// maxWaiting is how many bodies of a user are waited for.
	maxWaiting = 500
	// maxWaitingBytes is how much has come of these.
	maxWaitingBytes = 64 << 20
	// slowAfter is how long an answer is sent before it counts as slow.
	slowAfter = 5 * time.Second
	// maxSlow is how many answers a user takes slowly.
	maxSlow = 100
	// maxSlowBytes is what these hold of memory that is theirs alone.
	maxSlowBytes = 64 << 20
	// maxBody is how much of a body is read ahead; it is upstream's limit for
	// those of resources.
	maxBody = 3 << 20
)

// shares counts what users have waiting. The zero value is none.
type shares struct {
	mu sync.Mutex
	// users have an entry while they have anything.
	users map[string]*share
}

// share is what one user has waiting.
type share struct {
	bodies int
	bytes  int64
	// slow answers, longest ago first.
	slow []*answer
}

// answer is one that is sent slowly.
type answer struct {
	private int
	cut     func()
}

// of returns the share of a user; it is put in order by settle. The lock is
// held.
func (s *shares) of(name string) *share {
	u := s.users[name]
	if u == nil {
		if s.users == nil {
			s.users = map[string]*share{}
		}
		u = &share{}
		s.users[name] = u
	}
	return u
}

// settle forgets a share of nothing. The lock is held.
func (s *shares) settle(name string, u *share) {
	if u.bodies == 0 && len(u.slow) == 0 {
		delete(s.users, name)
	}
}

// tooMany is the refusal of a body; it never reaches a client as it is.
type tooMany struct{}

func (tooMany) Error() string { return "too many bodies are waited for" }

// body reads the body of a request before the request takes seats, and counts
// it until begun is called, which may happen several times. False when it was
// answered that there are too many. Bodies of those who have not said who they
// are are left alone: most are not allowed to send any.
func (s *shares) body(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info) (begun func(), ok bool) {
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
		mine := s.of(name)
		if !counted && mine.bodies >= maxWaiting || mine.bytes+int64(n)-held > maxWaitingBytes {
			s.settle(name, mine)
			return tooMany{}
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
		mine := s.of(name)
		mine.bodies--
		mine.bytes -= held
		s.settle(name, mine)
	}
	if err != nil {
		begun()
		fairness.TooMany(w, 1)
		return nil, false
	}
	return begun, true
}

// send sends an answer of a user. One that takes long may be cut off when the
// user has too many of them.
func (s *shares) send(w http.ResponseWriter, name string, private int, send func()) {
	a := &answer{private: private, cut: func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // in memory there is none, and no need
	}}
	done := false // guarded by s.mu
	slow := time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if done {
			return
		}
		mine := s.of(name)
		mine.slow = append(mine.slow, a)
		sum := 0
		for _, other := range mine.slow {
			sum += other.private
		}
		// The answer itself may be as large as it is.
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
			mine.slow = slices.DeleteFunc(mine.slow, func(other *answer) bool { return other == a })
			s.settle(name, mine)
		}
	}()
	send()
}
