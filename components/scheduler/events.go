package scheduler

import (
	"context"
	"sync/atomic"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// maxWaitingEvents is the maximum number of Event objects that wait in a serialEventSink. Each needs about 5 KB of
// memory.
const maxWaitingEvents = 4000

// serialEventSink writes Event objects to the API server one at a time, so that writing them does not take CPU time
// from scheduling. The event broadcaster of client-go uses a separate goroutine for each write, so without this type
// there would be as many concurrent requests as pods that are scheduled. If more than maxWaiting events wait, further
// events are written without waiting. It is safe for concurrent use.
type serialEventSink struct {
	events.EventSink
	// slot has capacity for the event that is being written.
	slot chan struct{}
	// waiting is the number of events that wait for slot, and maxWaiting is its limit.
	waiting    atomic.Int64
	maxWaiting int64
}

// newSerialEventSink returns a serialEventSink that writes with sink.
func newSerialEventSink(sink events.EventSink) *serialEventSink {
	return &serialEventSink{EventSink: sink, slot: make(chan struct{}, 1), maxWaiting: maxWaitingEvents}
}

// Create creates an event. It waits until no other event is being written, unless maxWaiting events already wait; then
// it writes the event immediately. If ctx is done before, it drops the event and returns it without an error.
func (u *serialEventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Create(ctx, event)
}

// Update updates an event when no other event is being written. It drops the update if ctx is done.
func (u *serialEventSink) Update(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Update(ctx, event)
}

// Patch patches an event when no other event is being written. It drops the patch if ctx is done.
func (u *serialEventSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	done, ok := u.begin(ctx)
	if !ok {
		return event, nil
	}
	defer done()
	return u.EventSink.Patch(ctx, event, data)
}

// begin waits until an event may be written. The caller then writes it and calls the returned function. If ctx is done
// first, begin returns false and the caller drops the event without an error, because the event broadcaster could not
// handle it.
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
