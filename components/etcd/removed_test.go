package etcd

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// TestRemoved checks that a member that was removed from the cluster fails with advice, also when
// it is started again.
func TestRemoved(t *testing.T) {
	ctx := t.Context()
	urls := freeURLs(t, "http", 4)
	first := Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Name: "a", ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:2],
		HeartbeatInterval: defaultHeartbeat, ElectionTimeout: defaultElection,
	}
	a, stop := start(t, first)
	defer stop()
	added, err := a.Client().MemberAddAsLearner(ctx, urls[3:])
	if err != nil {
		t.Fatal(err)
	}
	second := Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Name: "b", ListenClientURLs: urls[2:3], ListenPeerURLs: urls[3:],
		InitialCluster: "a=" + urls[1] + ",b=" + urls[3], InitialClusterState: "existing",
	}
	for _, try := range []string{"when it is removed", "when it is started again"} {
		b, err := New(second)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- b.Run(context.Background()) }()
		if try == "when it is removed" {
			<-b.Ready()
			if _, err := a.Client().MemberRemove(ctx, added.Member.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-ended; !errors.Is(err, errRemoved) {
			t.Errorf("%s: %v", try, err)
		}
	}
}
