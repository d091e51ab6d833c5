package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"
)

// write is an Op made ready for etcd.
type write struct {
	op      Op
	fullKey string
	// entry that a put makes; nil for a deletion and for keep.
	entry *Entry
	// stored is what etcd gets for entry.
	stored []byte
	// keep: the object would not change, only its revision is compared.
	keep bool
}

// operation is how upstream's metrics call the write.
func (w *write) operation() string {
	switch {
	case w.entry == nil && !w.keep:
		return "delete"
	case w.op.expect == 0:
		return "create"
	}
	return "update"
}

// Commit runs ops as one etcd transaction: all or none. No two ops may be of
// one key. Two of one collection share a revision, so a client that loses its
// watch between them and resumes from it misses the second: this is for what
// belongs together, as the two addresses of a dual-stack Service do, and never
// for the objects that a request names. The returned entries are in the order
// of ops, nil for deletions; revision is that of the transaction. A lost race
// is a *ConflictError. Nothing is returned before etcd has synced it to disk.
// After an *UnsettledError, or the end of ctx, the transaction may have happened
// or not.
func (s *Store) Commit(ctx context.Context, ops ...Op) (entries []*Entry, revision int64, err error) {
	writes, err := s.prepare(ctx, ops)
	if err != nil {
		return nil, 0, err
	}
	// The watch tells the same writes; it then finds these entries and need
	// not make its own.
	for i := range writes {
		if w := &writes[i]; w.entry != nil {
			s.own.begin(w)
		}
	}
	began := s.now()
	resp, err := s.transact(ctx, writes)
	for i := range writes {
		s.observed(writes[i].operation(), writes[i].op.collection, began, err)
	}
	if err != nil || !resp.Succeeded {
		s.own.abandon(writes)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("writing %s %q: %w", ops[0].collection.cfg.Resource, ops[0].key, unsettled(ctx, err))
	}
	if !resp.Succeeded {
		return nil, 0, conflict(writes, resp)
	}
	revision = resp.Header.Revision
	entries = make([]*Entry, len(writes))
	for i := range writes {
		w := &writes[i]
		switch {
		case w.keep:
			entries[i] = w.op.from
		case w.entry != nil:
			entries[i] = s.own.finish(w, revision)
		}
	}
	return entries, revision, nil
}

// prepare checks ops and encodes their objects.
func (s *Store) prepare(ctx context.Context, ops []Op) ([]write, error) {
	if len(ops) == 0 {
		return nil, errors.New("empty transaction")
	}
	writes := make([]write, len(ops))
	for i, op := range ops {
		c := op.collection
		if c == nil || c.store != s {
			return nil, fmt.Errorf("writing %q: not an operation of this store", op.key)
		}
		if op.key == "" {
			return nil, fmt.Errorf("writing %s: empty key", c.cfg.Resource)
		}
		for _, other := range ops[:i] {
			if other.collection == c && other.key == op.key {
				return nil, fmt.Errorf("writing %s %q: twice in a transaction", c.cfg.Resource, op.key)
			}
		}
		w := &writes[i]
		w.op, w.fullKey = op, c.prefix+op.key
		if op.object == nil {
			if op.expect == 0 {
				return nil, fmt.Errorf("writing %s %q: no object", c.cfg.Resource, op.key)
			}
			continue
		}
		data, err := c.cfg.Codec.Encode(op.object)
		if err != nil {
			return nil, fmt.Errorf("encoding %s %q: %w", c.cfg.Resource, op.key, err)
		}
		if op.from != nil && !op.from.Stale() && bytes.Equal(data, op.from.Bytes()) {
			fresh, err := c.fresh(ctx, op.from)
			if err != nil {
				return nil, fmt.Errorf("writing %s %q: %w", c.cfg.Resource, op.key, err)
			}
			if fresh {
				w.keep = true
				continue
			}
		}
		w.stored = data
		w.entry = c.newEntry(op.key, 0, data)
		if c.cfg.Transformer != nil {
			w.stored, err = c.cfg.Transformer.TransformToStorage(ctx, data, value.DefaultContext(w.fullKey))
			if err != nil {
				return nil, fmt.Errorf("encrypting %s %q: %w", c.cfg.Resource, op.key, err)
			}
			w.entry.stored, w.entry.size = nil, len(w.stored)
			w.entry.plain.Store(&plain{data: data})
		}
	}
	return writes, nil
}

// fresh tells whether what etcd has of an entry is as a write would store it
// now. How things are encrypted may have changed since the entry was decrypted:
// keys are rotated, so the transformer is asked again.
func (c *Collection) fresh(ctx context.Context, e *Entry) (bool, error) {
	if c.cfg.Transformer == nil {
		return true, nil
	}
	fullKey := c.prefix + e.key
	resp, err := c.store.client.Get(ctx, fullKey)
	if err != nil {
		return false, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != e.revision {
		return true, nil // the transaction will tell
	}
	_, stale, err := c.cfg.Transformer.TransformFromStorage(ctx, resp.Kvs[0].Value, value.DefaultContext(fullKey))
	return err == nil && !stale, nil
}

// transact runs the etcd transaction, once more when the lease that it was to
// use turns out to have ended.
func (s *Store) transact(ctx context.Context, writes []write) (*clientv3.TxnResponse, error) {
	cmps := make([]clientv3.Cmp, len(writes))
	thens := make([]clientv3.Op, 0, len(writes))
	elses := make([]clientv3.Op, len(writes))
	for again := false; ; again = true {
		thens = thens[:0]
		leased := false
		for i := range writes {
			w := &writes[i]
			cmps[i] = clientv3.Compare(clientv3.ModRevision(w.fullKey), "=", w.op.expect)
			elses[i] = clientv3.OpGet(w.fullKey)
			switch {
			case w.keep:
			case w.entry == nil:
				thens = append(thens, clientv3.OpDelete(w.fullKey))
			case w.op.ttl > 0:
				lease, err := s.leases.get(ctx, w.op.ttl)
				if err != nil {
					return nil, fmt.Errorf("getting a lease: %w", err)
				}
				leased = true
				thens = append(thens, clientv3.OpPut(w.fullKey, "", clientv3.WithLease(lease)))
				thens[len(thens)-1].WithValueBytes(w.stored)
			default:
				// As an argument the value would be copied twice.
				thens = append(thens, clientv3.OpPut(w.fullKey, ""))
				thens[len(thens)-1].WithValueBytes(w.stored)
			}
		}
		resp, err := s.client.Txn(ctx).If(cmps...).Then(thens...).Else(elses...).Commit()
		if leased && !again && errors.Is(err, rpctypes.ErrLeaseNotFound) {
			// etcd refused all of it, so nothing has been written.
			s.leases.reset()
			continue
		}
		return resp, err
	}
}

// conflict finds the operation that kept a transaction from happening.
func conflict(writes []write, resp *clientv3.TxnResponse) error {
	for i := range writes {
		w := &writes[i]
		op, c := w.op, w.op.collection
		err := &ConflictError{Resource: c.cfg.Resource, Key: op.key}
		if i < len(resp.Responses) {
			if kvs := resp.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
				if kvs[0].ModRevision == op.expect {
					continue
				}
				err.Current = c.newEntry(op.key, kvs[0].ModRevision, kvs[0].Value)
				if e := c.Cached(op.key); e != nil && e.revision == kvs[0].ModRevision {
					err.Current = e
				}
			}
		}
		switch {
		case op.expect == 0 && err.Current == nil:
			continue
		case op.expect == 0:
			err.Err = ErrExists
		case err.Current == nil:
			err.Err = ErrNotFound
		default:
			err.Err = ErrConflict
		}
		return err
	}
	return fmt.Errorf("writing %s %q: %w", writes[0].op.collection.cfg.Resource, writes[0].op.key, ErrConflict)
}
