package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"hyperkube/internal/base/tracing"
)

// write is an Op with its encoded and encrypted value, ready to be sent to etcd.
type write struct {
	op      Op
	fullKey string
	// entry is the new entry of a put; nil for a deletion and for keep.
	entry *Entry
	// stored is the encoded value of entry.
	stored []byte
	// keep is set if the object would not change. Then only its revision is compared.
	keep bool
}

// operation returns the kind of the write: "create", "update" (also if nothing would change) or "delete". It is the
// value of the label "operation" in upstream's etcd_request_duration_seconds.
func (w *write) operation() string {
	switch {
	case w.entry == nil && !w.keep:
		return "delete"
	case w.op.expect == 0:
		return "create"
	}
	return "update"
}

// spanName returns the name of the span of a write, as in upstream.
func spanName(operation string) string {
	switch operation {
	case "create":
		return "Create etcd3"
	case "delete":
		return "Delete etcd3"
	}
	return "GuaranteedUpdate etcd3"
}

// Commit executes ops in one etcd transaction. Two ops must not have the same key. Ops of the same collection get the
// same revision: a client whose watch breaks between their events and that resumes from this revision misses the
// second event. Therefore use it only for objects that belong together, such as the two IPAddresses of a dual-stack
// Service, and not for the objects of a client's request.
//
// The returned entries are in the order of ops, nil for deletions. revision is the revision of the transaction. If an
// object is not in the state that its op expects, nothing is written and the error is a *ConflictError. Other errors
// wrap those of this package, such as ErrTooLarge and ErrNoSpace. Commit returns after etcd has synced the
// transaction to disk. After an *UnsettledError, or if ctx is done, the transaction may or may not have happened.
func (s *Store) Commit(ctx context.Context, ops ...Op) (entries []*Entry, revision int64, err error) {
	writes, err := s.prepare(ctx, ops)
	if err != nil {
		return nil, 0, err
	}
	// The watch reports the same writes. It then uses these entries instead of creating new ones.
	for i := range writes {
		if w := &writes[i]; w.entry != nil {
			s.pending.begin(w)
		}
	}
	began := s.now()
	traced, end := tracing.StartChild(ctx, spanName(writes[0].operation()))
	resp, err := s.transact(traced, writes)
	end(err)
	for i := range writes {
		s.observed(writes[i].operation(), writes[i].op.collection, began, err)
	}
	if err != nil || !resp.Succeeded {
		s.pending.abandon(writes)
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
			entries[i] = s.pending.finish(w, revision)
		}
	}
	return entries, revision, nil
}

// prepare validates the operations of a transaction and encodes (and encrypts) their objects. It does not write
// anything. It returns an error if there is no operation, or if one belongs to another store, has no key, or has the
// same key as another one.
func (s *Store) prepare(ctx context.Context, ops []Op) ([]write, error) {
	if len(ops) == 0 {
		return nil, errors.New("empty transaction")
	}
	writes := make([]write, len(ops))
	for i, op := range ops {
		c := op.collection
		if c == nil || c.store != s {
			return nil, fmt.Errorf("writing %q: operation belongs to another store", op.key)
		}
		if op.key == "" {
			return nil, fmt.Errorf("writing %s: empty key", c.cfg.Resource)
		}
		for _, other := range ops[:i] {
			if other.collection == c && other.key == op.key {
				return nil, fmt.Errorf("writing %s %q: more than one operation in a transaction", c.cfg.Resource, op.key)
			}
		}
		w := &writes[i]
		w.op, w.fullKey = op, c.prefix+op.key
		if op.object == nil {
			if op.expect == 0 {
				return nil, fmt.Errorf("writing %s %q: object is missing", c.cfg.Resource, op.key)
			}
			continue
		}
		data, err := c.cfg.Codec.Encode(op.object)
		if err != nil {
			return nil, fmt.Errorf("encoding %s %q: %w", c.cfg.Resource, op.key, err)
		}
		if op.from != nil && !op.from.Stale() && bytes.Equal(data, op.from.Bytes()) {
			fresh, err := etcdReader{c}.fresh(ctx, op.from)
			if err != nil {
				return nil, fmt.Errorf("writing %s %q: %w", c.cfg.Resource, op.key, err)
			}
			if fresh {
				w.keep = true
				continue
			}
		}
		w.stored = data
		w.entry = newEntry(c, op.key, 0, data)
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

// transact sends the etcd transaction, which executes all writes if each key has its expected revision, and otherwise
// returns the current values of all keys. It sends it again once with a new lease if a lease of the transaction has
// expired, because etcd has written nothing then.
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
					return nil, fmt.Errorf("creating lease: %w", err)
				}
				leased = true
				thens = append(thens, clientv3.OpPut(w.fullKey, "", clientv3.WithLease(lease)))
				thens[len(thens)-1].WithValueBytes(w.stored)
			default:
				// OpPut would copy the value twice.
				thens = append(thens, clientv3.OpPut(w.fullKey, ""))
				thens[len(thens)-1].WithValueBytes(w.stored)
			}
		}
		resp, err := s.client.Txn(ctx).If(cmps...).Then(thens...).Else(elses...).Commit()
		if leased && !again && errors.Is(err, rpctypes.ErrLeaseNotFound) {
			// The complete transaction was rejected, so nothing was written.
			s.leases.reset()
			continue
		}
		return resp, err
	}
}

// conflict returns the *ConflictError for the first write whose condition failed. resp is the response of the failed
// transaction and contains the current value of each key. If it contains no such write, the error wraps only
// ErrConflict.
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
				err.Current = newEntry(c, op.key, kvs[0].ModRevision, kvs[0].Value)
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
