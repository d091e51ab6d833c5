package store

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// leaseShare is the maximum time during which one lease is used for new keys. Keys live at most this much longer
	// than requested.
	leaseShare = time.Minute
	// leaseKeys is the maximum number of keys per lease. When a lease expires, etcd deletes all its
	// keys in one transaction, which must not become too large.
	leaseKeys = 1000
)

// leases shares etcd leases between keys with the same time to live, such as events, because a
// lease per key would be expensive for etcd.
type leases struct {
	client *clientv3.Client
	// onFull is called with the number of keys of a lease when a new lease replaces it. It may be
	// nil.
	onFull func(keys int)

	mu    sync.Mutex
	byTTL map[int64]*lease
}

// lease is the lease that new keys with one time to live use until the time until.
type lease struct {
	// mu is held while the lease is granted, so that only one is granted.
	mu    sync.Mutex
	id    clientv3.LeaseID
	until time.Time
	keys  int
}

// get returns a lease with a remaining lifetime of at least ttl seconds, up to one second less, for one new key. It
// reuses a lease for up to leaseKeys keys and for a twentieth of ttl, at most leaseShare, and otherwise grants a new
// one in etcd. It returns the error of etcd.
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
	// Limit the additional lifetime of keys with a short ttl.
	share := min(leaseShare, time.Duration(ttl)*time.Second/20)
	granted, err := l.client.Grant(ctx, ttl+int64(share/time.Second))
	if err != nil {
		return 0, err
	}
	if shared.id != 0 && l.onFull != nil {
		l.onFull(shared.keys)
	}
	shared.id, shared.until, shared.keys = granted.ID, now.Add(share), 1
	return shared.id, nil
}

// reset makes get grant new leases for all times to live, because etcd reported that one has expired. The other
// leases stay in etcd until they expire with their keys.
func (l *leases) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.byTTL)
}
