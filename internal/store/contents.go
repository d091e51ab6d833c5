package store

import (
	"strings"
	"unique"

	"github.com/google/btree"
)

// contents are the entries of a collection by key, and by what its indexes tell
// of them. It is for one goroutine, or for many that only read.
type contents struct {
	entries *btree.BTreeG[*Entry]
	// indexes has those of CollectionConfig.Indexes, in that order.
	indexes []*btree.BTreeG[indexed]
}

// indexed is one entry's place in an index.
type indexed struct {
	value unique.Handle[string]
	entry *Entry
}

func entryLess(a, b *Entry) bool { return a.key < b.key }

func indexedLess(a, b indexed) bool {
	if a.value != b.value {
		return a.value.Value() < b.value.Value()
	}
	return a.entry.key < b.entry.key
}

// treeDegree trades the bytes copied for a write against depth.
const treeDegree = 16

func (c *Collection) newContents() *contents {
	t := &contents{entries: btree.NewWithFreeListG(treeDegree, entryLess, c.store.nodes)}
	for range c.indexes() {
		t.indexes = append(t.indexes, btree.NewG(treeDegree, indexedLess))
	}
	return t
}

// indexes of the collection. Of what has to be decrypted there are none: that
// may take long, and may fail now and work later.
func (c *Collection) indexes() []Index {
	if c.cfg.Transformer != nil {
		return nil
	}
	return c.cfg.Indexes
}

// clone costs next to nothing until one of both is changed.
func (t *contents) clone() *contents {
	other := &contents{entries: t.entries.Clone()}
	for _, x := range t.indexes {
		other.indexes = append(other.indexes, x.Clone())
	}
	return other
}

// get returns nil when there is none.
func (t *contents) get(key string) *Entry {
	e, _ := t.entries.Get(&Entry{key: key})
	return e
}

// put replaces the entry with the key of e and returns it, or nil.
func (t *contents) put(e *Entry) *Entry {
	previous, _ := t.entries.ReplaceOrInsert(e)
	for i, index := range e.collection.indexes() {
		value := unique.Make(index.Of(e))
		if previous != nil {
			if before := unique.Make(index.Of(previous)); before != value {
				t.indexes[i].Delete(indexed{before, previous})
			}
		}
		t.indexes[i].ReplaceOrInsert(indexed{value, e})
	}
	return previous
}

// remove returns what was there, or nil.
func (t *contents) remove(key string) *Entry {
	previous, _ := t.entries.Delete(&Entry{key: key})
	if previous == nil {
		return nil
	}
	for i, index := range previous.collection.indexes() {
		t.indexes[i].Delete(indexed{unique.Make(index.Of(previous)), previous})
	}
	return previous
}

// ascend calls f for all entries whose keys begin with prefix, from a key on,
// in the order of keys, until it returns false. With an index it leaves out
// those that have another value there.
func (t *contents) ascend(prefix, from string, in int, value string, f func(*Entry) bool) {
	pivot := &Entry{key: max(from, prefix)}
	if in < 0 {
		t.ascendAll(pivot, prefix, f)
		return
	}
	within := func(e *Entry) bool { return strings.HasPrefix(e.key, prefix) && f(e) }
	wanted := unique.Make(value)
	t.indexes[in].AscendGreaterOrEqual(indexed{wanted, pivot}, func(x indexed) bool {
		return x.value == wanted && within(x.entry)
	})
}

// ascendAll calls f for all entries with a prefix from pivot on. It does not look at
// their keys but for the last: to wait for the memory of each takes longer than
// all else that is done here.
func (t *contents) ascendAll(pivot *Entry, prefix string, f func(*Entry) bool) {
	if prefix == "" {
		t.entries.AscendGreaterOrEqual(pivot, f)
		return
	}
	last := t.lastWith(prefix)
	if last == nil || last.key < pivot.key {
		return
	}
	t.entries.AscendGreaterOrEqual(pivot, func(e *Entry) bool { return f(e) && e != last })
}

// lastWith returns the last entry whose key begins with a prefix, or nil.
func (t *contents) lastWith(prefix string) (last *Entry) {
	end := prefixEnd(prefix)
	keep := func(e *Entry) bool {
		if strings.HasPrefix(e.key, prefix) {
			last = e
		}
		return e.key == end
	}
	if end > prefix {
		t.entries.DescendLessOrEqual(&Entry{key: end}, keep)
	} else {
		t.entries.Descend(keep) // nothing comes behind
	}
	return last
}

// indexNamed returns the place of an index, or -1.
func (c *Collection) indexNamed(name string) int {
	if name != "" {
		for i, index := range c.indexes() {
			if index.Name == name {
				return i
			}
		}
	}
	return -1
}
