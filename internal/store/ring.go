package store

import "sort"

const (
	// ringMin is the number of recent events of a collection that are recorded regardless of their size.
	ringMin = 64
	// decodedEvents is the number of recent events for which the replaced version of an object
	// keeps its derived values. Watchers need them immediately; slow watchers derive them again.
	decodedEvents = 64
	// eventOverhead is the size of an event without the stored bytes.
	eventOverhead = 200
)

// firstNumber is the number of the first event. It leaves room for past events that are added
// later.
const firstNumber = 1 << 32

// ring is the recent history of a collection. Events are numbered in the order of their revisions;
// the ring contains those in [first, next). It grows as needed up to maxEvents or maxBytes.
type ring struct {
	maxEvents, maxBytes int

	// events has a length that is a power of two. Event n is at index n modulo the length.
	events      []Event
	first, next uint64
	// start is the revision after which the ring contains all events, up to the collection's
	// revision.
	start int64
	bytes int
}

// at returns event number n, which must be in [first, next).
func (r *ring) at(n uint64) *Event { return &r.events[n&uint64(len(r.events)-1)] }

// eventSize returns the approximate memory size of an event, in bytes.
func eventSize(ev *Event) int {
	if ev.Current != nil {
		return eventOverhead + ev.Current.size
	}
	return eventOverhead
}

// add appends an event, drops old events to stay within the limits (but keeps at least ringMin, whatever their size),
// and returns the number of the event.
func (r *ring) add(ev Event) uint64 {
	size := eventSize(&ev)
	for n := r.next - r.first; n > 0; n = r.next - r.first {
		if n < uint64(r.maxEvents) && (n < ringMin || r.bytes+size <= r.maxBytes) {
			break
		}
		r.evict()
	}
	if n := int(r.next - r.first); n == len(r.events) {
		r.grow(n)
	}
	number := r.next
	r.next++
	*r.at(number) = ev
	r.bytes += size
	if number >= r.first+decodedEvents {
		if old := r.at(number - decodedEvents); old.Previous != nil {
			old.Previous.dropDerived()
		}
	}
	return number
}

// evict drops the oldest event, which must exist. Watches from before its revision are no longer possible.
func (r *ring) evict() {
	ev := r.at(r.first)
	r.start = ev.Revision
	r.bytes -= eventSize(ev)
	if ev.Previous != nil {
		ev.Previous.dropDerived()
	}
	*ev = Event{}
	r.first++
}

// grow doubles the capacity of r, which contains n events.
func (r *ring) grow(n int) {
	size := max(8, 2*n)
	events := make([]Event, size)
	for i := r.first; i < r.next; i++ {
		events[i&uint64(size-1)] = *r.at(i)
	}
	r.events = events
}

// after returns the number of the first event after a revision, which must not be before start. It
// returns next if there is none.
func (r *ring) after(revision int64) uint64 {
	n := sort.Search(int(r.next-r.first), func(i int) bool {
		return r.at(r.first+uint64(i)).Revision > revision
	})
	return r.first + uint64(n)
}

// reset empties the ring. start is the revision after which it will contain all events. The numbers
// of new events are higher than those of all previous ones, so that watchers with an earlier number
// detect that they have missed events.
func (r *ring) reset(start int64) {
	r.events = nil
	r.next++
	r.first = r.next
	r.start = start
	r.bytes = 0
}
