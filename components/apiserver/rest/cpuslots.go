package rest

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// slotThreshold is the size in bytes from which on encoding or decoding an object waits for a CPU
// slot. JSON of this size takes about a millisecond of CPU time.
const slotThreshold = 128 << 10

// maxWaitingPerUser is the maximum number of one user's requests that wait for a CPU slot. Further
// requests get the error 429.
const maxWaitingPerUser = 100

// cpuSlots limits the concurrency of CPU-intensive work. Go gives each goroutine a time slice of ten
// milliseconds, so with many of them every step of a small request would wait for tens of
// milliseconds. Slots are assigned to users in round-robin order, regardless of the number of their
// requests.
type cpuSlots struct {
	mu   sync.Mutex
	free int
	// queues contains the queue of each waiting user. order is the order of users. Every queue of a
	// user in order is not empty, and each user occurs once.
	queues map[string][]chan struct{}
	order  []string
}

// newCPUSlots returns cpuSlots with the number of free slots that may be used at the same time.
func newCPUSlots(slots int) *cpuSlots {
	return &cpuSlots{free: slots, queues: map[string][]chan struct{}{}}
}

// acquire waits until a slot is assigned to the user of ctx. The caller must call done afterwards.
// It returns an error 429 if too many requests of the user wait already, or the error of ctx.
func (t *cpuSlots) acquire(ctx context.Context) (done func(), err error) {
	name := ""
	if u, ok := apirequest.UserFrom(ctx); ok {
		name = u.GetName()
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return t.release, nil
	}
	line := t.queues[name]
	if len(line) >= maxWaitingPerUser {
		t.mu.Unlock()
		return nil, apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
	}
	if len(line) == 0 {
		t.order = append(t.order, name)
	}
	turn := make(chan struct{})
	t.queues[name] = append(line, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return t.release, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, other := range t.queues[name] {
		if other == turn {
			t.dequeue(name, i)
			t.mu.Unlock()
			return nil, ctx.Err()
		}
	}
	t.mu.Unlock()
	t.release() // it was assigned in the meantime
	return nil, ctx.Err()
}

// dequeue removes the request at position i from a user's queue, and the user from order if the
// queue is then empty. The caller holds mu.
func (t *cpuSlots) dequeue(name string, i int) {
	line := t.queues[name]
	line = append(line[:i:i], line[i+1:]...)
	if len(line) > 0 {
		t.queues[name] = line
		return
	}
	delete(t.queues, name)
	for k, other := range t.order {
		if other == name {
			t.order = append(t.order[:k:k], t.order[k+1:]...)
			return
		}
	}
}

// release assigns the caller's slot to the first waiting request of the next user, or frees it if
// no request waits.
func (t *cpuSlots) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	name := t.order[0]
	close(t.queues[name][0])
	t.dequeue(name, 0)
	if len(t.queues[name]) > 0 {
		t.order = append(t.order[1:len(t.order):len(t.order)], name)
	}
}
