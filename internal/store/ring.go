package store

import "sort"

const (
	// ringMin is how many events a ring keeps whatever their size.
	ringMin = 64
	// decodedEvents is how many events back the replaced version of an object
	// keeps what was derived from it. Watchers ask for it right away or, when
	// slow, derive it again.
	decodedEvents = 64
	// eventOverhead is what an event costs beside the stored bytes.
	eventOverhead = 200
)

// firstNumber leaves room for events from before.
const firstNumber = 1 << 32

// ring is the recent history of a collection. Events are numbered in the order
// of their revisions; the ring has those in [first, next). It grows
// as needed to maxEvents or maxBytes.
type ring struct {
	maxEvents, maxBytes int

	// events has a length that is a power of two; event n is at n mod that.
	events      []Event
	first, next uint64
	// start: every event after this revision, up to the collection's
	// revision, is here.
	start int64
	bytes int
}

func (r *ring) at(n uint64) *Event { return &r.events[n&uint64(len(r.events)-1)] }

func eventSize(ev *Event) int {
	if ev.Current != nil {
		return eventOverhead + ev.Current.size
	}
	return eventOverhead
}

// add appends an event, dropping old ones where there is no room, and returns
// its number.
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
			old.Previous.forget()
		}
	}
	return number
}

func (r *ring) evict() {
	ev := r.at(r.first)
	r.start = ev.Revision
	r.bytes -= eventSize(ev)
	if ev.Previous != nil {
		ev.Previous.forget()
	}
	*ev = Event{}
	r.first++
}

func (r *ring) grow(n int) {
	size := max(8, 2*n)
	events := make([]Event, size)
	for i := r.first; i < r.next; i++ {
		events[i&uint64(size-1)] = *r.at(i)
	}
	r.events = events
}

// after returns the number of the first event after a revision, which must not
// be before start; next if there is none.
func (r *ring) after(revision int64) uint64 {
	n := sort.Search(int(r.next-r.first), func(i int) bool {
		return r.at(r.first+uint64(i)).Revision > revision
	})
	return r.first + uint64(n)
}

// reset empties the ring; numbers go on, so that places from before are known
// to be gone.
func (r *ring) reset(start int64) {
	r.events = nil
	r.next++
	r.first = r.next
	r.start = start
	r.bytes = 0
}
