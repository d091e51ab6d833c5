package store

import (
	"bytes"
	"sync"
)

// ownWrites are the writes of this process that the watch has not told yet.
// When it does, the cache takes the very entry that Commit returns, so that a
// value is decrypted and decoded once, not once for the writer and once for
// everybody else.
type ownWrites struct {
	mu sync.Mutex
	// byKey has at most one write a full key: only one can win anyway.
	byKey map[string]*ownWrite
}

// maxOwnWrites is when writes are forgotten that the watch ought to have told.
const maxOwnWrites = 1024

// ownWrite is one write. Its entry's revision is set once, by whoever comes
// first, before anybody else sees the entry.
type ownWrite struct {
	entry  *Entry
	stored []byte
	// told: the watch has it; returned: Commit has it. With both it is
	// forgotten.
	told, returned bool
}

func (o *ownWrites) begin(w *write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.op.collection.filled() {
		return // nobody will claim it
	}
	if own := o.byKey[w.fullKey]; own != nil && !own.returned {
		return // two race, the other may keep the place
	}
	if len(o.byKey) >= maxOwnWrites {
		for key, own := range o.byKey {
			if own.returned {
				delete(o.byKey, key)
			}
		}
	}
	o.byKey[w.fullKey] = &ownWrite{entry: w.entry, stored: w.stored}
}

// abandon forgets writes that failed, or of which nobody knows.
func (o *ownWrites) abandon(writes []write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		if own := o.byKey[w.fullKey]; w.entry != nil && own != nil && own.entry == w.entry {
			delete(o.byKey, w.fullKey)
		}
	}
}

// finish gives the entry of a write that succeeded its revision.
func (o *ownWrites) finish(w *write, revision int64) *Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	own := o.byKey[w.fullKey]
	if own == nil || own.entry != w.entry {
		w.entry.revision = revision
		return w.entry
	}
	own.returned = true
	if own.told {
		delete(o.byKey, w.fullKey)
		if w.entry.revision != revision {
			// The watch took it for another write of the same bytes.
			return w.op.collection.newEntry(w.op.key, revision, w.stored)
		}
		return w.entry
	}
	w.entry.revision = revision
	return w.entry
}

// claim returns the entry for a change that the watch tells.
func (o *ownWrites) claim(c *Collection, ch change) *Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	own := o.byKey[c.prefix+ch.key]
	if own == nil || own.told || !bytes.Equal(own.stored, ch.value) ||
		own.returned && own.entry.revision != ch.revision {
		return c.newEntry(ch.key, ch.revision, ch.value)
	}
	own.told = true
	if own.returned {
		delete(o.byKey, c.prefix+ch.key)
	} else {
		own.entry.revision = ch.revision
	}
	return own.entry
}
