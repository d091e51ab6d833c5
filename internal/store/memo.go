package store

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// memo is a cached value that is derived from an entry: the bytes of a slot of Entry.Memo, or the
// decoded object of the entry.
type memo struct {
	slot int
	// sibling is the next memo of the entry. It never changes after publication.
	sibling *memo
	// mu is held while the value is created, so that other callers wait for it.
	mu   sync.Mutex
	data atomic.Pointer[[]byte]
	// object is set instead of data for the decoded object of entry.
	object atomic.Pointer[runtime.Object]
	entry  *Entry
	// used is set if the memo was used since the clock's hand passed it.
	used atomic.Bool

	// The links of the clock's ring, nil while the memo is not in it. Guarded by the clock's lock.
	prev, next *memo
	size       int
}

// get returns the bytes and marks them as used, or nil if they were not created yet or were
// dropped.
func (m *memo) get() []byte {
	p := m.data.Load()
	if p == nil {
		return nil
	}
	m.touch()
	return *p
}

// held returns the decoded object and marks it as used, or nil if it was dropped.
func (m *memo) held() runtime.Object {
	p := m.object.Load()
	if p == nil {
		return nil
	}
	m.touch()
	return *p
}

// touch marks the memo as used, so that the next visit of the clock's hand does not drop it. It
// writes only if needed, because concurrent readers share the cache line.
func (m *memo) touch() {
	if !m.used.Load() {
		m.used.Store(true)
	}
}

// memoOverhead is the approximate memory size of a memo in bytes, without its value.
const memoOverhead = 128

// decodedSize returns the approximate memory size of an object whose stored size is size.
func decodedSize(size int) int { return 2*size + 512 }

// memoClock limits the memory of all memos of a store with the CLOCK algorithm: when the limit is
// exceeded, its hand moves around and drops the memos that were not used since its last visit. A
// cache hit takes no lock.
type memoClock struct {
	limit int

	mu   sync.Mutex
	hand *memo
	used int
}

// add stores data in m and makes it count against the memory limit. Nil data and values larger than a quarter of the
// limit are not kept, because the latter would displace many others.
func (c *memoClock) add(m *memo, data []byte) {
	size := len(data) + memoOverhead
	if size > c.limit/4 || data == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(m)
	m.data.Store(&data)
	c.insert(m, size)
}

// hold keeps the decoded object of an entry in memory within the memory limit. It does nothing if an object of the
// entry is already held, or if it is larger than a quarter of the limit.
func (c *memoClock) hold(e *Entry, obj runtime.Object) {
	size := decodedSize(e.size) + memoOverhead
	if size > c.limit/4 {
		return
	}
	m := &memo{entry: e}
	m.object.Store(&obj)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.held.CompareAndSwap(nil, m) {
		return
	}
	c.insert(m, size)
}

// insert adds a memo of size bytes to those that the clock's hand visits, and drops unused memos until the memory
// limit is met. The caller holds mu.
func (c *memoClock) insert(m *memo, size int) {
	m.size = size
	if c.hand == nil {
		m.prev, m.next = m, m
		c.hand = m
	} else {
		// Insert it behind the hand, so that it is visited last.
		m.prev, m.next = c.hand.prev, c.hand
		m.prev.next, m.next.prev = m, m
	}
	c.used += size
	for c.used > c.limit {
		victim := c.hand
		if victim.used.Swap(false) {
			c.hand = victim.next
			continue
		}
		c.remove(victim)
	}
}

// drop removes a memo and its value from the cache. It does nothing if the memo has no value.
func (c *memoClock) drop(m *memo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(m)
}

// remove removes a memo and its value from the cache, and does nothing if it is not there. The caller must hold mu,
// unlike for drop.
func (c *memoClock) remove(m *memo) {
	if m.next == nil {
		return
	}
	if m.next == m {
		c.hand = nil
	} else {
		m.prev.next, m.next.prev = m.next, m.prev
		if c.hand == m {
			c.hand = m.next
		}
	}
	m.prev, m.next = nil, nil
	m.data.Store(nil)
	if m.entry != nil {
		m.object.Store(nil)
		m.entry.held.CompareAndSwap(m, nil)
	}
	c.used -= m.size
}
