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

// Entry is one stored version of an object. It is immutable and shared by the cache, events and
// readers. Values derived from the stored bytes are computed on first use, and can be dropped when
// the version is not the current one anymore.
type Entry struct {
	collection *Collection
	key        string
	revision   int64
	// size is the number of stored bytes.
	size int

	// mu serializes decryption and decoding.
	mu sync.Mutex
	// stored is the value in etcd. Without a transformer it never changes. With a transformer it is
	// guarded by mu and becomes nil when plain is set.
	stored []byte
	// plain is set once if there is a transformer.
	plain atomic.Pointer[plain]
	// part is the result of Part: its start plus one and its end, 32 bits each; noPart if there is
	// none; zero before the first call.
	part atomic.Uint64
	// weak refers to the decoded object as long as it is used. held keeps it alive within the
	// memory limit of the store. Most objects are decoded only once, for the next write, so an
	// object is held only when it is requested a second time.
	held atomic.Pointer[memo]
	weak atomic.Pointer[weakObject]
	// trimmed is like weak for the trimmed object.
	trimmed atomic.Pointer[weakObject]
	memos   atomic.Pointer[memo]
}

// plain is the value of an entry after decryption. Without a transformer it is the stored value.
type plain struct {
	data []byte
	// stale is set if a write would encrypt the value differently now.
	stale bool
}

// newEntry creates an entry for a value as it is stored in etcd, possibly encrypted. Values derived
// from it are computed on first use.
func newEntry(c *Collection, key string, revision int64, stored []byte) *Entry {
	return &Entry{collection: c, key: key, revision: revision, stored: stored, size: len(stored)}
}

// Unstored creates an entry for an object that is not stored in etcd, with revision zero, so that code which works on
// entries can process it. It encodes obj, which the caller may then modify. It returns an error if obj cannot be
// encoded.
func (c *Collection) Unstored(key string, obj runtime.Object) (*Entry, error) {
	data, err := c.cfg.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %q: %w", c.cfg.Resource, key, err)
	}
	e := newEntry(c, key, 0, data)
	e.plain.Store(&plain{data: data})
	return e, nil
}

// Key returns the key below the collection, e.g. "default/web".
func (e *Entry) Key() string { return e.key }

// Revision returns the etcd revision of the write that has created this version, which is the object's
// resourceVersion. It is zero for an entry of Unstored.
func (e *Entry) Revision() int64 { return e.revision }

// Object returns the decoded object and decodes it on first use. The object is shared and must not be modified. It is
// kept as long as it is used, or until the next garbage collection. If it is requested again before that, it is kept
// within the memory limit of the store. It returns a *CorruptError, which wraps ErrCorrupt, if the value cannot be
// decrypted or decoded.
func (e *Entry) Object() (runtime.Object, error) { return e.decoded(retainHeld) }

// Shared is like Object for callers that keep the object, such as informers. The store does not keep it in memory,
// but other callers get the same object as long as it is used.
func (e *Entry) Shared() (runtime.Object, error) { return e.decoded(retainWeak) }

// Peek is like Object for callers that use the object only once. A newly decoded object is neither kept nor shared
// with other callers.
func (e *Entry) Peek() (runtime.Object, error) { return e.decoded(retainNone) }

// Trimmed is like Shared, but the object lacks the parts that the collection's Codec leaves out if it is a Trimmer.
// With another Codec it is the same as Shared. Callers of Trimmed share the object; Object and Shared do not use it.
func (e *Entry) Trimmed() (runtime.Object, error) {
	codec, ok := e.collection.cfg.Codec.(Trimmer)
	if !ok {
		return e.decoded(retainWeak)
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

// retention specifies how long a decoded object is kept: not at all, as long as callers use it, or within the
// memory limit of the store.
type retention int

const (
	retainNone retention = iota
	retainWeak
	retainHeld
)

// decoded returns the decoded object and keeps it as keep specifies. Concurrent callers decode only once, unless keep
// is retainNone. It returns a *CorruptError if the value cannot be decrypted or decoded.
func (e *Entry) decoded(keep retention) (runtime.Object, error) {
	if obj := e.existing(keep); obj != nil {
		return obj, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if obj := e.existing(keep); obj != nil {
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
	if keep >= retainWeak {
		e.weak.Store(weaken(obj))
	}
	return obj, nil
}

// existing returns the decoded object of the entry if it was decoded before and is still in memory, otherwise nil.
// With retainHeld, it keeps the object within the memory limit of the store.
func (e *Entry) existing(keep retention) runtime.Object {
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
	if obj != nil && keep == retainHeld {
		e.collection.store.memos.hold(e, obj)
	}
	return obj
}

// Bytes returns the decrypted bytes created by Codec.Encode. They must not be modified and do not contain the
// resourceVersion. It returns nil if they cannot be decrypted; Err then returns the reason.
func (e *Entry) Bytes() []byte {
	data, err := e.load()
	if err != nil {
		return nil
	}
	return data.data
}

// noPart is the value of the field part of an Entry for which find has reported that there is no part.
const noPart = 1 << 32 * 2

// Part returns the range [from, to) of Bytes that find returns. It returns nil if find reports that there is none, or
// if the range ends beyond 2 GiB. find is called about once per entry, and the result is cached for all callers, so
// all of them must use the same function. The error is the one that Err returns.
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

// Err returns an error if the value cannot be decrypted. It wraps ErrCorrupt and contains the key.
func (e *Entry) Err() error {
	_, err := e.load()
	return err
}

// Stale reports whether the object should be written again, because a write would encrypt the value
// differently now, for example after a key rotation. It also returns true if the value cannot be
// decrypted.
func (e *Entry) Stale() bool {
	data, err := e.load()
	return err != nil || data.stale
}

// load returns the decrypted value, or a *CorruptError if it cannot be decrypted. Without encryption it takes no
// lock.
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

// decrypt returns the decrypted value and keeps it instead of the stored one. The caller holds mu. Errors are not
// cached, because a key management service may become available again.
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

// errEncrypted is the error for an encrypted value of a resource that is not configured for
// encryption.
var errEncrypted = errors.New("identity transformer tried to read encrypted data")

// corrupt returns the CorruptError for a value that cannot be decrypted (encrypted is set) or
// decoded because of err. Without a transformer, a value with the prefix of encrypted values is
// reported as encrypted.
func (e *Entry) corrupt(encrypted bool, err error) error {
	if e.collection.cfg.Transformer == nil && bytes.HasPrefix(e.stored, []byte("k8s:enc:")) {
		encrypted, err = true, errEncrypted
	}
	key := e.collection.prefix + e.key
	path := e.collection.PathOf(e.key)
	return &CorruptError{Key: key, Path: path, Encrypted: encrypted, Revision: e.revision, Err: err}
}

// Unreadable returns a CorruptError for an entry that was decoded but cannot be converted to the
// API version that the client requested. err is the error of the conversion.
func (e *Entry) Unreadable(err error) error {
	return &CorruptError{Key: e.collection.FullKey(e.key), Path: e.collection.PathOf(e.key), Revision: e.revision, Err: err}
}

// Memo returns a value that is derived from the entry by make, such as its JSON. The value is created once and then
// shared, but the cache can drop it at any time, and does not keep values larger than a quarter of the memory limit
// of the store; make is then called again. slot is a small number that identifies the kind of value. Callers for the
// same slot wait for each other. make can call other methods of the entry, but not Memo for the same slot. Its error
// is returned and not cached.
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

// memo returns the cached value of the entry for the slot, and adds an empty one if there is none. It takes no
// lock.
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

// dropDerived drops the decoded objects and cached values of an entry that a newer version has replaced, to free
// memory. Callers that still use such a value keep it alive; later callers compute it again.
func (e *Entry) dropDerived() {
	e.weak.Store(nil)
	e.trimmed.Store(nil)
	if m := e.held.Load(); m != nil {
		e.collection.store.memos.drop(m)
	}
	for m := e.memos.Load(); m != nil; m = m.sibling {
		e.collection.store.memos.drop(m)
	}
}
