package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/apiserver/pkg/storage/value"
)

// etcdReader contains the methods of a collection that read from etcd instead of the cache. They do
// not use the state that the collection's lock guards, so they can be called without the lock.
type etcdReader struct{ *Collection }

// all reads all entries from etcd at a revision, or at the current one if it is zero, and returns
// that revision. Large collections are read in pieces. Keys that belong to a collection with a
// longer path are skipped.
func (c etcdReader) all(ctx context.Context, revision int64) ([]*mvccpb.KeyValue, int64, error) {
	var kvs []*mvccpb.KeyValue
	from := c.prefix
	for {
		resp, err := c.store.getRange(ctx, c.Collection, from, rangeEnd(c.prefix), revision, readPiece)
		if err != nil {
			return nil, 0, fmt.Errorf("reading %s: %w", c.prefix, etcdError(err))
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if c.store.route(kv.Key) == c.Collection {
				kvs = append(kvs, kv)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return kvs, revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// readPiece is the maximum number of keys per request to etcd. Larger responses would need much
// memory in etcd and here.
const readPiece = 2000

// rangeEnd returns the first key after all keys with the prefix, which has a trailing slash.
func rangeEnd(prefix string) string { return strings.TrimSuffix(prefix, "/") + "0" }

// page reads a page of a list from etcd at the exact revision opts.Revision. List uses it for revisions that the
// cache cannot restore anymore. It returns ErrTooOld if etcd has compacted the revision.
func (c etcdReader) page(ctx context.Context, opts ListOptions) (*Page, error) {
	page := &Page{Revision: opts.Revision, Remaining: -1}
	looked := 0
	defer func() { c.etcdLists.add(looked, len(page.Entries), opts.Match != nil) }()
	from := c.prefix + max(opts.From, opts.Prefix)
	end := rangeEnd(c.prefix)
	if opts.Prefix != "" {
		end = prefixEnd(c.prefix + opts.Prefix)
	}
	piece := int64(readPiece)
	if opts.Limit > 0 {
		// Read one more entry to detect whether there is a next page.
		piece = min(piece, int64(opts.Limit)+1)
	}
	for ; ; piece = min(2*piece, readPiece) { // read larger pieces if few entries match
		resp, err := c.store.getRange(ctx, c.Collection, from, end, opts.Revision, piece)
		if err != nil {
			return nil, etcdError(err)
		}
		for i, kv := range resp.Kvs {
			if c.store.route(kv.Key) != c.Collection {
				continue
			}
			e := newEntry(c.Collection, string(kv.Key[len(c.prefix):]), kv.ModRevision, kv.Value)
			looked++
			if opts.Limit > 0 && len(page.Entries) == opts.Limit {
				page.Next = e.key
				if opts.Match == nil {
					page.Remaining = resp.Count - int64(i)
				}
				return page, nil
			}
			if opts.Match == nil || opts.Match(e) {
				page.Entries = append(page.Entries, e)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			if opts.Match == nil {
				page.Remaining = 0
			}
			return page, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// prefixEnd returns the first key after all keys with the prefix, which is the end of etcd's range.
// It returns "\x00", which etcd treats as the end of all keys, if there is no such key.
func prefixEnd(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return "\x00"
}

// events returns all events of the collection in (start, end]. start is since, or the revision of the last compaction
// of etcd if that is later. It returns an error if etcd has compacted everything up to end, or cannot be reached.
func (c etcdReader) events(ctx context.Context, since, end int64) (events []Event, start int64, err error) {
	for {
		events, err = c.watchPast(ctx, since, end)
		var compacted *compactedError
		if !errors.As(err, &compacted) {
			return events, since, err
		}
		// Values at the compacted revision are available, those before are not.
		if compacted.revision <= since || compacted.revision >= end {
			return nil, 0, err
		}
		since = compacted.revision
	}
}

// errNoPrevious is returned when etcd was compacted while past events were read.
var errNoPrevious = errors.New("previous value is compacted")

// compactedError is the error of watchPast if etcd has been compacted at revision, which is after
// the requested start.
type compactedError struct{ revision int64 }

// Error returns a text with the revision at which etcd was compacted.
func (e *compactedError) Error() string { return fmt.Sprintf("compacted at %d", e.revision) }

// watchPast opens an etcd watch after the revision since and returns the collection's events up to the revision end.
// It returns a *compactedError if etcd has compacted a part of them, errNoPrevious if it has compacted the version
// before an event, and the error of ctx if that is done first.
func (c etcdReader) watchPast(ctx context.Context, since, end int64) ([]Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Use a separate stream, because progress notifications apply to all watches of a stream.
	ctx = metadata.AppendToOutgoingContext(ctx, "hyperkube-replay", fmt.Sprintf("%p", c.Collection))
	responses := c.store.client.Watch(ctx, c.prefix,
		clientv3.WithPrefix(), clientv3.WithRev(since+1), clientv3.WithPrevKV(), clientv3.WithFragment())
	var events []Event
	last := make(map[string]*Entry)
	// etcd does not report progress while a watch catches up, so repeat the request.
	ask := time.NewTicker(progressRetry / 2)
	defer ask.Stop()
	for {
		select {
		case resp, ok := <-responses:
			if !ok {
				return nil, errors.Join(ErrUnavailable, ctx.Err())
			}
			if resp.CompactRevision > 0 {
				return nil, &compactedError{resp.CompactRevision}
			}
			if err := resp.Err(); err != nil {
				return nil, etcdError(err)
			}
			for _, kv := range resp.Events {
				if kv.Kv.ModRevision > end {
					return events, nil
				}
				if c.store.route(kv.Kv.Key) != c.Collection {
					continue
				}
				ev, err := c.pastEvent(kv, last)
				if err != nil {
					return nil, err
				}
				events = append(events, ev)
			}
			if n := len(resp.Events); n == 0 && resp.Header.Revision >= end || n > 0 && resp.Events[n-1].Kv.ModRevision >= end {
				return events, nil
			}
		case <-ask.C:
			_ = c.store.client.RequestProgress(ctx)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// pastEvent converts an event of etcd to an Event. last contains the entry of each key from the
// previous events, which is reused as the previous version; pastEvent updates it. It returns
// errNoPrevious if etcd does not have the previous value anymore.
func (c etcdReader) pastEvent(kv *clientv3.Event, last map[string]*Entry) (Event, error) {
	key := string(kv.Kv.Key[len(c.prefix):])
	ev := Event{Revision: kv.Kv.ModRevision}
	before := last[key]
	delete(last, key)
	if kv.PrevKv != nil && before != nil && before.revision == kv.PrevKv.ModRevision {
		ev.Previous = before
	} else if kv.PrevKv != nil {
		ev.Previous = newEntry(c.Collection, key, kv.PrevKv.ModRevision, kv.PrevKv.Value)
	} else if !kv.IsCreate() {
		return ev, fmt.Errorf("%s at %d: %w", kv.Kv.Key, kv.Kv.ModRevision, errNoPrevious)
	}
	if kv.Type == clientv3.EventTypePut {
		if ev.Current = c.Cached(key); ev.Current == nil || ev.Current.revision != kv.Kv.ModRevision {
			ev.Current = newEntry(c.Collection, key, kv.Kv.ModRevision, kv.Kv.Value)
		}
		last[key] = ev.Current
	}
	return ev, nil
}

// fresh reports whether the stored value of an entry is encrypted as a write would encrypt it now. Commit omits a
// write that changes nothing only in this case. It reads the value from etcd and decrypts it again, because the
// encryption configuration may have changed since the entry was decrypted, for example by key rotation. It returns
// true without encryption, and also if the entry has changed in etcd, which the transaction detects. It returns false
// if the value cannot be decrypted, and an error if etcd cannot be read.
func (c etcdReader) fresh(ctx context.Context, e *Entry) (bool, error) {
	if c.cfg.Transformer == nil {
		return true, nil
	}
	fullKey := c.prefix + e.key
	resp, err := c.store.client.Get(ctx, fullKey)
	if err != nil {
		return false, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != e.revision {
		return true, nil // the transaction detects the conflict
	}
	_, stale, err := c.cfg.Transformer.TransformFromStorage(ctx, resp.Kvs[0].Value, value.DefaultContext(fullKey))
	return err == nil && !stale, nil
}
