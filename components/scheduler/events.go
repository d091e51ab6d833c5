package scheduler

import (
	"context"
	"sync/atomic"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// maxWaitingEvents is the maximum number of events that wait to be written. Each needs about 5 KB of
// memory.
const maxWaitingEvents = 4000

// serialEventSink is an event sink that writes one event at a time, so that writing events does not take
// CPU time from scheduling. The broadcaster writes each event in a separate goroutine, so without
// this there would be as many concurrent requests as scheduled pods. Events above the limit of
// waiting ones are written without a wait.
type serialEventSink struct {
	events.EventSink
	// slot has capacity for the event that is being written.
	slot chan struct{}
	// waiting is the number of events that wait for turn, and most is the limit.
	waiting    atomic.Int64
	maxWaiting int64
}

func newSerialEventSink(sink events.EventSink) *serialEventSink {
	return &serialEventSink{EventSink: sink, slot: make(chan struct{}, 1), maxWaiting: maxWaitingEvents}
}

// Create implements events.EventSink.
func (u *serialEventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Create(ctx, event)
}

// Update implements events.EventSink.
func (u *serialEventSink) Update(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Update(ctx, event)
}

// Patch implements events.EventSink.
func (u *serialEventSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Patch(ctx, event, data)
}

// begin waits until an event may be written; the caller calls the returned function afterwards. It
// returns false if ctx is canceled. The event is then dropped without an error, because the caller
// could not handle it.
func (u *serialEventSink) begin(ctx context.Context) (func(), bool) {
	if u.waiting.Add(1) > u.maxWaiting {
		u.waiting.Add(-1)
		return func() {}, true
	}
	defer u.waiting.Add(-1)
	select {
	case u.slot <- struct{}{}:
		return func() { <-u.slot }, true
	case <-ctx.Done():
		return nil, false
	}
}
