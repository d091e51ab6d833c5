package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// inProcessKV is the KV of the in-process client. It also implements CurrentRevision, which is much
// cheaper than a read (internal/store checks for it).
type inProcessKV struct {
	clientv3.KV
	server *etcdserver.EtcdServer
}

// CurrentRevision returns the revision of the cluster, linearizably: it includes every write that was acknowledged to
// any client before the call. With several members, or without being the leader, it asks the cluster; it then returns
// an error if there is no quorum. It also returns an error if ctx is done.
//
// A single member does not need to contact other members for that. It acknowledges a write after applying it, and no
// other member can acknowledge one: this member learns of another member, even a learner, before that member starts.
func (l *inProcessKV) CurrentRevision(ctx context.Context) (int64, error) {
	if len(l.server.Cluster().Members()) != 1 || l.server.Leader() != l.server.MemberID() {
		if err := l.server.LinearizableReadNotify(ctx); err != nil {
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return l.server.KV().Rev(), nil
}
