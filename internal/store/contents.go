package store

import (
	"strings"
	"unique"

	"github.com/google/btree"
)

// contents are the entries of a collection, sorted by key, with their indexes. Concurrent reads are safe, but not
// concurrently with a change.
type contents struct {
	entries *btree.BTreeG[*Entry]
	// indexes contains the indexes of CollectionConfig.Indexes, in that order.
	indexes []*btree.BTreeG[indexed]
}

// indexed is an element of an index: an entry and the value that Index.Of returns for it.
type indexed struct {
	value unique.Handle[string]
	entry *Entry
}

// entryLess compares two entries by their keys, for the B-tree that contains the entries of a collection.
func entryLess(a, b *Entry) bool { return a.key < b.key }

// indexedLess compares two elements of an index, for its B-tree: by their values and then by the keys of the entries.
func indexedLess(a, b indexed) bool {
	if a.value != b.value {
		return a.value.Value() < b.value.Value()
	}
	return a.entry.key < b.entry.key
}

// treeDegree is the degree of the B-trees of entries. Larger nodes make the tree less deep, but
// more bytes are copied per write.
const treeDegree = 16

// newContents returns contents without entries. indexes is the number of indexes of the collection. nodes is the
// store's list of unused tree nodes, which the new tree reuses.
func newContents(indexes int, nodes *btree.FreeListG[*Entry]) *contents {
	t := &contents{entries: btree.NewWithFreeListG(treeDegree, entryLess, nodes)}
	for range indexes {
		t.indexes = append(t.indexes, btree.NewG(treeDegree, indexedLess))
	}
	return t
}

// indexes returns the indexes of the collection. Encrypted collections (with a Transformer) have none, because
// decryption can take long and can fail temporarily.
func (c *CollectionConfig) indexes() []Index {
	if c.Transformer != nil {
		return nil
	}
	return c.Indexes
}

// indexNamed returns which of the indexes that indexes() returns has the name, counting from 0, or -1 if there is
// none.
func (c *CollectionConfig) indexNamed(name string) int {
	if name != "" {
		for i, index := range c.indexes() {
			if index.Name == name {
				return i
			}
		}
	}
	return -1
}

// clone returns a lazy copy, so that changes of one do not affect the other: both share their tree nodes, and a node
// is copied when one of them modifies it.
func (t *contents) clone() *contents {
	other := &contents{entries: t.entries.Clone()}
	for _, x := range t.indexes {
		other.indexes = append(other.indexes, x.Clone())
	}
	return other
}

// get returns the entry with the key, or nil.
func (t *contents) get(key string) *Entry {
	e, _ := t.entries.Get(&Entry{key: key})
	return e
}

// put inserts e in place of the entry with the same key, updates the indexes, and returns the replaced entry, or nil.
func (t *contents) put(e *Entry) *Entry {
	previous, _ := t.entries.ReplaceOrInsert(e)
	for i, index := range e.collection.cfg.indexes() {
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

// remove removes the entry with the key from the tree and the indexes. It returns the entry, or nil
// if there is none.
func (t *contents) remove(key string) *Entry {
	previous, _ := t.entries.Delete(&Entry{key: key})
	if previous == nil {
		return nil
	}
	for i, index := range previous.collection.cfg.indexes() {
		t.indexes[i].Delete(indexed{unique.Make(index.Of(previous)), previous})
	}
	return previous
}

// ascend calls f for all entries with the key prefix, starting at the key from, in the order of
// keys, until f returns false. If in is not negative, it is the position of an index, and only
// entries with value in that index are visited.
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

// ascendAll calls f for all entries with the prefix from the key of pivot on, until f returns false. It looks up the
// last key with the prefix first and ends there, instead of comparing each key with the prefix, because loading each
// key from memory takes longer than everything else in the loop.
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

// lastWith returns the entry with the highest key that begins with prefix, or nil if there is none.
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
		t.entries.Descend(keep) // no key sorts after the prefix
	}
	return last
}
