package store

import "sync/atomic"

// Counts are the numbers of events, reads, lists and terminated watchers of a collection, for metrics.
type Counts struct {
	// Received counts the events from etcd, Reads the reads from the cache that had to include all
	// previous writes, Fills the fills of the cache.
	Received, Reads, Fills uint64
	// Cache and Etcd count the lists from the cache and from etcd. TerminatedWatchers counts the
	// watchers that were terminated because they fell behind the recorded history.
	Cache, Etcd        Lists
	TerminatedWatchers uint64
	// Capacity is the number of recent events that the history can currently contain.
	Capacity int
}

// Lists counts lists that were served from one source, the cache or etcd. Fetched is the number of objects that were
// checked, Evaluated the number of those for which Match was called, Returned the number that were returned.
type Lists struct{ Total, Fetched, Evaluated, Returned uint64 }

// lists contains the counters that Lists is a copy of. They are updated atomically.
type lists struct{ total, fetched, evaluated, returned atomic.Uint64 }

// add counts one list that checked a number of entries (evaluated) and returned some of them. matched is set if the
// list had a Match function, which was then called for each checked entry.
func (l *lists) add(evaluated, returned int, matched bool) {
	l.total.Add(1)
	l.fetched.Add(uint64(evaluated))
	if matched {
		l.evaluated.Add(uint64(evaluated))
	}
	l.returned.Add(uint64(returned))
}

// load returns a copy of the current counts.
func (l *lists) load() Lists {
	return Lists{Total: l.total.Load(), Fetched: l.fetched.Load(), Evaluated: l.evaluated.Load(), Returned: l.returned.Load()}
}

// counters are the event counters of a collection. They are safe for concurrent use.
type counters struct {
	// received counts the events from etcd, reads the waits for the cache to reach etcd's current
	// revision, fills the fills of the cache.
	received, reads, fills atomic.Uint64
	// cacheLists and etcdLists count the lists from the cache and from etcd. terminatedWatchers
	// counts the watchers that were terminated because they fell behind.
	cacheLists, etcdLists lists
	terminatedWatchers    atomic.Uint64
}

// Counts returns the current counters of the collection, for metrics. It is safe for concurrent
// use.
func (c *Collection) Counts() Counts {
	c.mu.Lock()
	capacity := len(c.ring.events)
	c.mu.Unlock()
	return Counts{
		Received: c.received.Load(), Reads: c.reads.Load(), Fills: c.fills.Load(),
		Cache: c.cacheLists.load(), Etcd: c.etcdLists.load(), TerminatedWatchers: c.terminatedWatchers.Load(), Capacity: capacity,
	}
}
