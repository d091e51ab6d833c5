package store

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// leaseShare is how long one lease is given to further keys. Keys live
	// at most that much longer than they were asked to.
	leaseShare = time.Minute
	// leaseKeys is how many keys one lease is given to: ending a lease
	// deletes them all in one transaction.
	leaseKeys = 1000
)

// leases shares etcd leases between keys with the same time to live, for a
// lease a key is a burden on etcd.
type leases struct {
	client *clientv3.Client
	// full, unless nil, is told how many keys a lease was given to at last.
	full func(keys int)

	mu    sync.Mutex
	byTTL map[int64]*lease
}

type lease struct {
	// mu is held while the lease is granted, so that only one is.
	mu    sync.Mutex
	id    clientv3.LeaseID
	until time.Time
	keys  int
}

// get returns a lease that lives at least ttl seconds from now.
func (l *leases) get(ctx context.Context, ttl int64) (clientv3.LeaseID, error) {
	l.mu.Lock()
	shared := l.byTTL[ttl]
	if shared == nil {
		shared = &lease{}
		l.byTTL[ttl] = shared
	}
	l.mu.Unlock()

	shared.mu.Lock()
	defer shared.mu.Unlock()
	now := time.Now()
	if shared.id != 0 && now.Before(shared.until) && shared.keys < leaseKeys {
		shared.keys++
		return shared.id, nil
	}
	// Short lives must not double.
	share := min(leaseShare, time.Duration(ttl)*time.Second/20)
	granted, err := l.client.Grant(ctx, ttl+int64(share/time.Second))
	if err != nil {
		return 0, err
	}
	if shared.id != 0 && l.full != nil {
		l.full(shared.keys)
	}
	shared.id, shared.until, shared.keys = granted.ID, now.Add(share), 1
	return shared.id, nil
}

// reset forgets all leases; etcd ends them in time.
func (l *leases) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.byTTL)
}
