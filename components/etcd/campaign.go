package etcd

import (
	"context"
	"expvar"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// campaignPace is how often a member that starts looks whether it may stand
// for election.
const campaignPace = 2 * time.Millisecond

// campaign makes the only member of a cluster its leader without waiting for
// an election timeout: there is nobody who could be the leader already. It
// sends the member the message by which a leader hands over to another. Should
// that be of no effect, the timeout still is.
func campaign(ctx context.Context, server *etcdserver.EtcdServer) {
	ticker := time.NewTicker(campaignPace)
	defer ticker.Stop()
	for rounds := 0; server.Leader() == 0; {
		if mayStand(server) {
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

// mayStand tells whether the member has applied its log, raft knows that, and
// there is no other member.
//
// Before its log has been applied a member does not know its own cluster.
// Before raft has been told so, it would look for changes of the cluster in
// entries that the server may have dropped from memory already, and panic. The
// server tells what it has applied before it tells raft, so raft is asked.
func mayStand(server *etcdserver.EtcdServer) bool {
	committed := server.CommittedIndex()
	if committed == 0 || server.AppliedIndex() < committed || len(server.Cluster().Members()) != 1 {
		return false
	}
	variable, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	// It is the status of the member of this process that was made last.
	status, ok := variable.Value().(raft.Status)
	return ok && status.ID == uint64(server.MemberID()) &&
		status.Applied >= committed && status.Applied >= status.HardState.GetCommit()
}
