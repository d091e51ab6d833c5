package store

import (
	"bytes"
	"sync"
)

// pendingWrites are the writes of this process that the watch has not reported yet. When the watch
// reports one, the cache takes the same entry that Commit returns, so that a value is decrypted and
// decoded only once for the writer and all readers.
type pendingWrites struct {
	mu sync.Mutex
	// byKey contains at most one write per full key, because concurrent writes of a key conflict.
	byKey map[string]*pendingWrite
}

// maxPendingWrites limits pendingWrites. When it is reached, the writes that Commit has already
// returned are dropped: the watch should have reported them, but has not because it is broken.
const maxPendingWrites = 1024

// pendingWrite is one put that Commit has sent to etcd. The revision of its entry is set once, by
// the watch or by Commit, before any other goroutine can see the entry.
type pendingWrite struct {
	entry  *Entry
	stored []byte
	// reported is set when the watch has reported the write, returned when Commit has returned it. When
	// both are set, the write is removed.
	reported, returned bool
}

// begin adds a write before it is sent to etcd, so that the watch can use its entry. It does nothing if the cache of
// the collection is not filled yet, or if another write of the same key is in progress.
func (o *pendingWrites) begin(w *write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !closed(w.op.collection.ready) {
		return // without a filled cache, the watch does not use the entry
	}
	if pw := o.byKey[w.fullKey]; pw != nil && !pw.returned {
		return // concurrent write of the same key: keep the other one
	}
	if len(o.byKey) >= maxPendingWrites {
		for key, pw := range o.byKey {
			if pw.returned {
				delete(o.byKey, key)
			}
		}
	}
	o.byKey[w.fullKey] = &pendingWrite{entry: w.entry, stored: w.stored}
}

// abandon removes writes that failed or whose outcome is unknown, so that the watch creates new entries if it reports
// them.
func (o *pendingWrites) abandon(writes []write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		if pw := o.byKey[w.fullKey]; w.entry != nil && pw != nil && pw.entry == w.entry {
			delete(o.byKey, w.fullKey)
		}
	}
}

// finish returns the entry of a successful write with its revision. It is the entry that the watch
// uses too, unless the watch has already used it for another write of the same bytes.
func (o *pendingWrites) finish(w *write, revision int64) *Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	pw := o.byKey[w.fullKey]
	if pw == nil || pw.entry != w.entry {
		w.entry.revision = revision
		return w.entry
	}
	pw.returned = true
	if pw.reported {
		delete(o.byKey, w.fullKey)
		if w.entry.revision != revision {
			// The watch used the entry for another write of the same bytes.
			return newEntry(w.op.collection, w.op.key, revision, w.stored)
		}
		return w.entry
	}
	w.entry.revision = revision
	return w.entry
}

// claim returns the entry for a change that the watch reports. That is the entry of the pending write with the same
// key and value, and the same revision if etcd has responded to the write. It is a new entry if there is no such
// write or the watch has reported it before.
func (o *pendingWrites) claim(c *Collection, ch change) *Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	pw := o.byKey[c.prefix+ch.key]
	if pw == nil || pw.reported || !bytes.Equal(pw.stored, ch.value) ||
		pw.returned && pw.entry.revision != ch.revision {
		return newEntry(c, ch.key, ch.revision, ch.value)
	}
	pw.reported = true
	if pw.returned {
		delete(o.byKey, c.prefix+ch.key)
	} else {
		pw.entry.revision = ch.revision
	}
	return pw.entry
}
