package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
)

// Entry is one stored version of one object. It is immutable and shared by
// the cache, by events and by whoever read it. What is derived from the stored
// bytes is made at first use and may be dropped again when the version is no
// longer the current one.
type Entry struct {
	collection *Collection
	key        string
	revision   int64
	// size of the stored bytes.
	size int

	// mu serialises decryption and decoding.
	mu sync.Mutex
	// stored is what etcd has. Without a transformer it never changes; with
	// one it is guarded by mu and nil once plain is set.
	stored []byte
	// plain is set once when there is a transformer.
	plain atomic.Pointer[plain]
	// part is what Part was told: one more than where it begins, and where it
	// ends, in 32 bits each; none where that is no end; zero before.
	part atomic.Uint64
	// weak finds the decoded object as long as anybody has it; held keeps it
	// for as long as the store's bound allows. Most are wanted but once, by
	// the next write, so that it takes a second time to be held.
	held atomic.Pointer[memo]
	weak atomic.Pointer[weakObject]
	// trimmed finds the trimmed one in the same way.
	trimmed atomic.Pointer[weakObject]
	memos   atomic.Pointer[memo]
}

// plain is a decrypted value.
type plain struct {
	data []byte
	// stale: it was not encrypted the way a write would do it now.
	stale bool
}

func (c *Collection) newEntry(key string, revision int64, stored []byte) *Entry {
	return &Entry{collection: c, key: key, revision: revision, stored: stored, size: len(stored)}
}

// Unstored makes an entry of an object that no etcd has.
func (c *Collection) Unstored(key string, obj runtime.Object) (*Entry, error) {
	data, err := c.cfg.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %q: %w", c.cfg.Resource, key, err)
	}
	e := c.newEntry(key, 0, data)
	e.plain.Store(&plain{data: data})
	return e, nil
}

// Key below the collection, e.g. "default/web".
func (e *Entry) Key() string { return e.key }

// Revision of the last write: the object's resourceVersion.
func (e *Entry) Revision() int64 { return e.revision }

// Object returns the decoded object, decoding it at first use. It is shared:
// nobody may write to it. It lives for as long as somebody has it, or until the
// next garbage collection; one that is asked for again meanwhile is kept within
// the store's bound. The error wraps ErrCorrupt and names the key.
func (e *Entry) Object() (runtime.Object, error) { return e.decoded(holding) }

// Shared is Object for those who keep what they get, such as informers: the
// store does not keep it for them, but others get the same object meanwhile.
func (e *Entry) Shared() (runtime.Object, error) { return e.decoded(sharing) }

// Peek is Object for those who look at it once: nothing is kept of what had to
// be decoded.
func (e *Entry) Peek() (runtime.Object, error) { return e.decoded(peeking) }

// Trimmed is Shared without what a Codec that is a Trimmer leaves out. Others
// get the same object meanwhile who ask for it trimmed; Object and Shared know
// nothing of it.
func (e *Entry) Trimmed() (runtime.Object, error) {
	codec, ok := e.collection.cfg.Codec.(Trimmer)
	if !ok {
		return e.decoded(sharing)
	}
	living := func() runtime.Object {
		if w := e.trimmed.Load(); w != nil {
			return w.get()
		}
		return nil
	}
	if obj := living(); obj != nil {
		return obj, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if obj := living(); obj != nil {
		return obj, nil
	}
	data, err := e.decrypt()
	if err != nil {
		return nil, err
	}
	obj, err := codec.DecodeTrimmed(data.data, e.revision)
	if err != nil {
		return nil, e.corrupt(false, err)
	}
	e.trimmed.Store(weaken(obj))
	return obj, nil
}

// keeping is what becomes of an object that had to be decoded.
type keeping int

const (
	peeking keeping = iota
	sharing
	holding
)

func (e *Entry) decoded(keep keeping) (runtime.Object, error) {
	if obj := e.living(keep); obj != nil {
		return obj, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if obj := e.living(keep); obj != nil {
		return obj, nil
	}
	data, err := e.decrypt()
	if err != nil {
		return nil, err
	}
	obj, err := e.collection.cfg.Codec.Decode(data.data, e.revision)
	if err != nil {
		return nil, e.corrupt(false, err)
	}
	if keep >= sharing {
		e.weak.Store(weaken(obj))
	}
	return obj, nil
}

// living returns the object if there still is one.
func (e *Entry) living(keep keeping) runtime.Object {
	if m := e.held.Load(); m != nil {
		if obj := m.held(); obj != nil {
			return obj
		}
	}
	w := e.weak.Load()
	if w == nil {
		return nil
	}
	obj := w.get()
	if obj != nil && keep == holding {
		e.collection.store.memos.hold(e, obj)
	}
	return obj
}

// Bytes returns what Codec.Encode made, decrypted; nobody may write to it. It
// does not have the resourceVersion. It is nil when Err is not.
func (e *Entry) Bytes() []byte {
	data, err := e.load()
	if err != nil {
		return nil
	}
	return data.data
}

// noPart is an Entry.part that ends before it begins.
const noPart = 1 << 32 * 2

// Part returns what find tells of Bytes, from one index to another; nil when it tells
// that there is none. It is asked but once, so that all callers have the same: who
// goes through many entries need not look into each of them. The error is Err.
func (e *Entry) Part(find func(data []byte) (from, to int, ok bool)) ([]byte, error) {
	data, err := e.load()
	if err != nil {
		return nil, err
	}
	part := e.part.Load()
	if part == 0 {
		from, to, ok := find(data.data)
		if part = noPart; ok && to < 1<<31 {
			part = uint64(from+1)<<32 | uint64(to)
		}
		e.part.Store(part)
	}
	from, to := int(part>>32)-1, int(part&(1<<32-1))
	if to < from {
		return nil, nil
	}
	return data.data[from:to:to], nil
}

// Err tells why Bytes returns nil: the value cannot be decrypted. It wraps
// ErrCorrupt and names the key.
func (e *Entry) Err() error {
	_, err := e.load()
	return err
}

// Stale tells whether the value is encrypted in another way than a write would
// do it now, so that writing the same object again is worth while.
func (e *Entry) Stale() bool {
	data, err := e.load()
	return err != nil || data.stale
}

func (e *Entry) load() (plain, error) {
	if e.collection.cfg.Transformer == nil {
		return plain{data: e.stored}, nil
	}
	if p := e.plain.Load(); p != nil {
		return *p, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.decrypt()
}

// decrypt wants mu held. Failures are not remembered: a key service may come
// back.
func (e *Entry) decrypt() (plain, error) {
	transformer := e.collection.cfg.Transformer
	if transformer == nil {
		return plain{data: e.stored}, nil
	}
	if p := e.plain.Load(); p != nil {
		return *p, nil
	}
	fullKey := e.collection.prefix + e.key
	data, stale, err := transformer.TransformFromStorage(context.Background(), e.stored, value.DefaultContext(fullKey))
	if err != nil {
		return plain{}, e.corrupt(true, err)
	}
	p := plain{data: data, stale: stale}
	e.plain.Store(&p)
	e.stored = nil
	return p, nil
}

// errEncrypted is of a value that is encrypted although nothing of its kind is.
var errEncrypted = errors.New("identity transformer tried to read encrypted data")

func (e *Entry) corrupt(encrypted bool, err error) error {
	if e.collection.cfg.Transformer == nil && bytes.HasPrefix(e.stored, []byte("k8s:enc:")) {
		encrypted, err = true, errEncrypted
	}
	key := e.collection.prefix + e.key
	path := e.collection.PathOf(e.key)
	return &CorruptError{Key: key, Path: path, Encrypted: encrypted, Revision: e.revision, Err: err}
}

// Unreadable is the error of an entry that was decoded, but cannot be read as
// what it is asked for, for err. It wraps ErrCorrupt, err, and names the key.
func (e *Entry) Unreadable(err error) error {
	return &CorruptError{Key: e.collection.FullKey(e.key), Path: e.collection.PathOf(e.key), Revision: e.revision, Err: err}
}

// Memo returns a value derived from the entry, made once by make and then
// shared, such as its JSON. The cache may drop it at any time. slot is a small
// number that tells uses apart; the length of the value is what it counts
// against the store's bound. Callers for the same slot wait for each other;
// make may call the entry's other methods, but not Memo for the same slot.
func (e *Entry) Memo(slot int, make func() ([]byte, error)) ([]byte, error) {
	m := e.memo(slot)
	if data := m.get(); data != nil {
		return data, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if data := m.get(); data != nil {
		return data, nil
	}
	data, err := make()
	if err != nil {
		return nil, err
	}
	e.collection.store.memos.add(m, data)
	return data, nil
}

// memo finds or adds the slot.
func (e *Entry) memo(slot int) *memo {
	var added *memo
	for {
		head := e.memos.Load()
		for m := head; m != nil; m = m.sibling {
			if m.slot == slot {
				return m
			}
		}
		if added == nil {
			added = &memo{slot: slot}
		}
		added.sibling = head
		if e.memos.CompareAndSwap(head, added) {
			return added
		}
	}
}

// forget drops what can be derived again. Those who hold it keep it.
func (e *Entry) forget() {
	e.weak.Store(nil)
	e.trimmed.Store(nil)
	if m := e.held.Load(); m != nil {
		e.collection.store.memos.drop(m)
	}
	for m := e.memos.Load(); m != nil; m = m.sibling {
		e.collection.store.memos.drop(m)
	}
}
