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

// compactKey is where the API servers of one etcd agree who compacts, upstream's
// among them: its version counts the rounds, its value is the revision that the
// next round compacts.
const compactKey = "compact_rev_key"

// defaultCompactInterval is upstream's --etcd-compaction-interval.
const defaultCompactInterval = 5 * time.Minute

// Compactor makes etcd forget what is older than one to two intervals. It works
// together with the compaction of other API servers, upstream's included.
type Compactor struct {
	// Client of etcd.
	Client *clientv3.Client
	// Interval between compactions; zero means five minutes.
	Interval time.Duration
	// Compacted is told the revision before which etcd forgets, whoever of
	// its API servers asked for that. It may be nil.
	Compacted func(revision int64)
	// Log receives what goes wrong. Nil: nothing.
	Log *slog.Logger
}

// Run compacts until ctx ends.
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
				c.Log.Warn("cannot compact etcd", "revision", revision, "error", err)
			}
			continue
		}
		round, revision = next, current
	}
}

// compact makes etcd forget what is before revision, unless another has done
// this round. It returns the round and the revision to call it with an interval
// later.
func (c *Compactor) compact(ctx context.Context, round, revision int64) (next, current int64, err error) {
	resp, err := c.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", round)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(revision, 10))).
		Else(clientv3.OpGet(compactKey)).
		Commit()
	if err != nil {
		return 0, 0, fmt.Errorf("taking the round: %w", etcdError(err))
	}
	current = resp.Header.Revision
	if !resp.Succeeded {
		if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			if taken, err := strconv.ParseInt(string(kvs[0].Value), 10, 64); err == nil {
				c.tell(taken)
			}
			return kvs[0].Version, current, nil
		}
		return 0, current, nil // somebody deleted it
	}
	if revision == 0 {
		return round + 1, current, nil // the first round only begins
	}
	_, err = c.Client.Compact(ctx, revision)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return 0, 0, fmt.Errorf("compacting: %w", etcdError(err))
	}
	c.tell(revision)
	return round + 1, current, nil
}

func (c *Compactor) tell(revision int64) {
	if c.Compacted != nil && revision > 0 {
		c.Compacted(revision)
	}
}

// Forget makes lists of exactly a revision before this one fail with
// ErrTooOld, as etcd's own do, though a cache could still answer them: who
// reads on with an old token is to learn of it in time, in a collection that
// has not changed since, too.
func (s *Store) Forget(revision int64) {
	for {
		old := s.forgotten.Load()
		if old >= revision || s.forgotten.CompareAndSwap(old, revision) {
			return
		}
	}
}
