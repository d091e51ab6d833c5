package rest

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// largeWork is from how many bytes on making or reading something waits for a
// turn: about a millisecond of CPU in JSON.
const largeWork = 128 << 10

// maxTurns is how many of a user's requests wait for a turn.
const maxTurns = 100

// turns let few requests at a time do what costs a processor much: Go gives
// each goroutine ten milliseconds, so that with many at work every step of any
// small request would wait for tens of them. Users take turns, whatever the
// number of their requests.
type turns struct {
	mu   sync.Mutex
	free int
	// lines of users that wait; order is whose turn is next. Every line in
	// order has somebody, and each user is in it once.
	lines map[string][]chan struct{}
	order []string
}

func newTurns(atOnce int) *turns {
	return &turns{free: atOnce, lines: map[string][]chan struct{}{}}
}

// take waits for a turn, which the caller gives back by done.
func (t *turns) take(ctx context.Context) (done func(), err error) {
	name := ""
	if u, ok := apirequest.UserFrom(ctx); ok {
		name = u.GetName()
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return t.next, nil
	}
	line := t.lines[name]
	if len(line) >= maxTurns {
		t.mu.Unlock()
		return nil, apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
	}
	if len(line) == 0 {
		t.order = append(t.order, name)
	}
	turn := make(chan struct{})
	t.lines[name] = append(line, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return t.next, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, other := range t.lines[name] {
		if other == turn {
			t.leave(name, i)
			t.mu.Unlock()
			return nil, ctx.Err()
		}
	}
	t.mu.Unlock()
	t.next() // it has just come
	return nil, ctx.Err()
}

// leave takes one out of a user's line. The lock is held.
func (t *turns) leave(name string, i int) {
	line := t.lines[name]
	line = append(line[:i:i], line[i+1:]...)
	if len(line) > 0 {
		t.lines[name] = line
		return
	}
	delete(t.lines, name)
	for k, other := range t.order {
		if other == name {
			t.order = append(t.order[:k:k], t.order[k+1:]...)
			return
		}
	}
}

// next gives a turn to whoever is next.
func (t *turns) next() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	name := t.order[0]
	close(t.lines[name][0])
	t.leave(name, 0)
	if len(t.lines[name]) > 0 {
		t.order = append(t.order[1:len(t.order):len(t.order)], name)
	}
}
