package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// localKV is the KV of the client in process. Besides, it tells the current
// revision for much less than a read costs (internal/store looks for that).
type localKV struct {
	clientv3.KV
	server *etcdserver.EtcdServer
}

// CurrentRevision returns the revision of the cluster, linearizably: whatever
// was acknowledged to anybody before the call is within it.
//
// The only member of a cluster need not ask anybody for that. A write is
// acknowledged after this member has applied it, and nobody else can
// acknowledge one: another member, even a learner, is known here before it
// starts.
func (l *localKV) CurrentRevision(ctx context.Context) (int64, error) {
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
