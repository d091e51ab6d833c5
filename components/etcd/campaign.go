package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
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
	// Before its log has been applied a member does not know its own cluster,
	// and raft learns that it has been applied a little later than the server
	// tells. Nobody says when, so it waits another round.
	for applied := 0; server.Leader() == 0; {
		if committed := server.CommittedIndex(); committed > 0 && server.AppliedIndex() >= committed &&
			len(server.Cluster().Members()) == 1 {
			if applied%5 == 1 {
				id := uint64(server.MemberID())
				_ = server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id})
			}
			applied++
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
