package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactKey is the key with which the API servers of an etcd cluster, including upstream's,
// coordinate compaction. Its version counts the rounds, its value is the revision that the next
// round compacts.
const compactKey = "compact_rev_key"

// defaultCompactInterval is the default of upstream's --etcd-compaction-interval.
const defaultCompactInterval = 5 * time.Minute

// Compactor periodically deletes etcd's history (old versions of keys) that is older than one to
// two intervals. All API servers of the etcd cluster, including upstream's, share the key
// compactKey, so that one of them compacts per interval.
type Compactor struct {
	// Client is the etcd client.
	Client *clientv3.Client
	// Interval is the interval between compactions. Zero means five minutes.
	Interval time.Duration
	// Compacted is called with the revision of each compaction, including those of other API
	// servers. It may be nil.
	Compacted func(revision int64)
	// Log receives a warning for each failed compaction. If it is nil, nothing is logged.
	Log *slog.Logger
}

// Run compacts once per interval until ctx is done; the first interval only determines the revision. A failed
// compaction is logged and tried again after the next interval. It returns an error only if Client is nil.
func (c *Compactor) Run(ctx context.Context) error {
	if c.Client == nil {
		return errors.New("compactor: no etcd client")
	}
	interval := c.Interval
	if interval == 0 {
		interval = defaultCompactInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var round, revision int64
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		next, current, err := c.compact(ctx, round, revision)
		if err != nil {
			if ctx.Err() == nil && c.Log != nil {
				c.Log.Warn("compacting the history in etcd failed; the history keeps using space in the etcd database, retrying after the interval", "interval", interval, "revision", revision, "err", err)
			}
			continue
		}
		round, revision = next, current
	}
}

// compact compacts etcd up to revision, unless another API server has already done so in this round; then it only
// reports that revision to Compacted. round is the expected version of compactKey. With revision zero, compact only
// starts the round. It returns the round and the revision for the call after the next interval.
func (c *Compactor) compact(ctx context.Context, round, revision int64) (next, current int64, err error) {
	resp, err := c.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", round)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(revision, 10))).
		Else(clientv3.OpGet(compactKey)).
		Commit()
	if err != nil {
		return 0, 0, fmt.Errorf("starting compaction round: %w", etcdError(err))
	}
	current = resp.Header.Revision
	if !resp.Succeeded {
		if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			if taken, err := strconv.ParseInt(string(kvs[0].Value), 10, 64); err == nil {
				c.notify(taken)
			}
			return kvs[0].Version, current, nil
		}
		return 0, current, nil // the key was deleted
	}
	if revision == 0 {
		return round + 1, current, nil // the first round only starts the interval
	}
	_, err = c.Client.Compact(ctx, revision)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return 0, 0, fmt.Errorf("compacting: %w", etcdError(err))
	}
	c.notify(revision)
	return round + 1, current, nil
}

// notify calls Compacted, if it is set and a compaction has taken place (revision is not zero).
func (c *Compactor) notify(revision int64) {
	if c.Compacted != nil && revision > 0 {
		c.Compacted(revision)
	}
}

// SetCompacted records that etcd was compacted at revision. Lists at an exact revision before it
// then fail with ErrTooOld, as they would in etcd, even if the cache could still serve them. So
// clients with an old continue token get the same error for all collections, including those that
// have not changed. A revision lower than a previous one has no effect.
func (s *Store) SetCompacted(revision int64) {
	for {
		old := s.compacted.Load()
		if old >= revision || s.compacted.CompareAndSwap(old, revision) {
			return
		}
	}
}
