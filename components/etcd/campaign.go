package etcd

import (
	"context"
	"expvar"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// campaignInterval is the interval at which campaign checks whether the starting member can become
// the leader.
const campaignInterval = 2 * time.Millisecond

// campaign makes the only member of a cluster its leader without waiting for an election timeout, which shortens the
// start by a second. It is safe because no other member can be the leader. It sends the member MsgTimeoutNow, the
// raft message of a leadership transfer, about every 10 ms until there is a leader. It also returns when the member
// is ready or stops, or when ctx is done. If the message has no effect, for example because the cluster has more
// members after all, the member is elected after the election timeout.
func campaign(ctx context.Context, server *etcdserver.EtcdServer) {
	ticker := time.NewTicker(campaignInterval)
	defer ticker.Stop()
	for rounds := 0; server.Leader() == 0; {
		if canCampaign(server) {
			if rounds%5 == 0 {
				id := uint64(server.MemberID())
				_ = server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id})
			}
			rounds++
		}
		select {
		case <-ticker.C:
		case <-server.ReadyNotify():
			return
		case <-server.StopNotify():
			return
		case <-ctx.Done():
			return
		}
	}
}

// canCampaign reports whether the member is the only one of its cluster, has applied its committed log, and raft has
// registered this.
//
// The member does not know the cluster's members before it has applied its log. If it campaigned before raft had
// registered the applied index, raft would search for membership changes in entries that the server may have dropped
// from memory already, and panic. The server updates its own applied index before that of raft, so the raft status is
// checked.
func canCampaign(server *etcdserver.EtcdServer) bool {
	committed := server.CommittedIndex()
	if committed == 0 || server.AppliedIndex() < committed || len(server.Cluster().Members()) != 1 {
		return false
	}
	variable, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	// The variable contains the status of the most recently created member of this process.
	status, ok := variable.Value().(raft.Status)
	return ok && status.ID == uint64(server.MemberID()) &&
		status.Applied >= committed && status.Applied >= status.HardState.GetCommit()
}
