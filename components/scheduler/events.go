package scheduler

import (
	"context"
	"sync/atomic"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// mostHeldBack is how many events wait for their turn at most. Each takes some
// 5 KB until it is written.
const mostHeldBack = 4000

// unhurried writes events one after the other, so that telling where pods went
// does not take from the CPU that placing the next ones needs: the broadcaster
// hands over each event by a goroutine of its own, and as many requests would be
// under way as there are pods. Those that find too many waiting are not held back.
type unhurried struct {
	events.EventSink
	// turn has room for the one that is being written.
	turn chan struct{}
	// waiting is how many wait for their turn, and most how many may.
	waiting atomic.Int64
	most    int64
}

func newUnhurried(sink events.EventSink) *unhurried {
	return &unhurried{EventSink: sink, turn: make(chan struct{}, 1), most: mostHeldBack}
}

// Create as events.EventSink.
func (u *unhurried) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Create(ctx, event)
}

// Update as events.EventSink.
func (u *unhurried) Update(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Update(ctx, event)
}

// Patch as events.EventSink.
func (u *unhurried) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Patch(ctx, event, data)
}

// begin waits for a turn, which the returned function ends. It returns false when
// ctx has ended: the event is given up then, which is no error that anyone could
// do something about.
func (u *unhurried) begin(ctx context.Context) (func(), bool) {
	if u.waiting.Add(1) > u.most {
		u.waiting.Add(-1)
		return func() {}, true
	}
	defer u.waiting.Add(-1)
	select {
	case u.turn <- struct{}{}:
		return func() { <-u.turn }, true
	case <-ctx.Done():
		return nil, false
	}
}
