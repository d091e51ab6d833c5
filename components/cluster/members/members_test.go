package members_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/components/cluster/members"
	"hyperkube/components/etcd"
	"hyperkube/internal/testport"
)

func freeURLs(t *testing.T, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		urls = append(urls, "http://"+testport.Address(t))
	}
	return urls
}

func start(t *testing.T, cfg etcd.Config) (ended chan error) {
	t.Helper()
	s, err := etcd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		ended <- s.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ended
}

// TestMembers lets a second member enter and leave.
func TestMembers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	urls := freeURLs(t, 4)
	config := func(name string, client, peer string) etcd.Config {
		return etcd.Config{
			DataDir: filepath.Join(t.TempDir(), name), Name: name, ListenClientURLs: []string{client}, ListenPeerURLs: []string{peer},
			HeartbeatInterval: 100 * time.Millisecond, ElectionTimeout: time.Second,
		}
	}
	start(t, config("one", urls[0], urls[1]))
	dial := func(urls []string) (*clientv3.Client, error) { return etcd.Dial(etcd.DialConfig{Servers: urls}) }
	c, err := members.Dial(urls[:1], dial, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	if removed, err := c.Remove(ctx, urls[1]); removed || err != nil {
		t.Errorf("the only member is removed: %v, %v", removed, err)
	}
	initial, err := c.AddLearner(ctx, "two", urls[3])
	if err != nil || !strings.Contains(initial, "two="+urls[3]) || !strings.Contains(initial, "one="+urls[1]) {
		t.Fatal(initial, err)
	}
	if again, err := c.AddLearner(ctx, "two", urls[3]); err != nil || again != initial {
		t.Errorf("a second try: %s, %v", again, err)
	}
	cfg := config("two", urls[2], urls[3])
	cfg.InitialCluster, cfg.InitialClusterState = initial, "existing"
	ended := start(t, cfg)
	for range 2 {
		if err := c.Promote(ctx, urls[3]); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := c.URLs(ctx); err != nil || len(all) != 2 {
		t.Errorf("members at %v, %v", all, err)
	}
	if _, err := c.AddLearner(ctx, "two", urls[3]); err == nil {
		t.Error("one that has started enters again")
	}
	if removed, err := c.Remove(ctx, urls[3]); !removed || err != nil {
		t.Errorf("removed: %v, %v", removed, err)
	}
	for _, when := range []string{"a member that was removed", "and started again"} {
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "has been removed from the cluster") {
				t.Errorf("%s ends with %v", when, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s goes on", when)
		}
		ended = start(t, cfg)
	}
	if removed, err := c.Remove(ctx, urls[3]); removed || err != nil {
		t.Errorf("removed once more: %v, %v", removed, err)
	}
	if err := c.Promote(ctx, urls[3]); err == nil {
		t.Error("one that is none has a vote")
	}
}

// choosing is a cluster that has no leader at the first call of each kind; what
// it was asked for may have been done nevertheless. The second time that it is asked
// to remove a member it never answers.
type choosing struct {
	clientv3.Cluster
	listed, added bool
	removed       int
}

func (c *choosing) MemberList(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	if !c.listed {
		c.listed = true
		return nil, rpctypes.ErrLeaderChanged
	}
	return c.Cluster.MemberList(ctx, opts...)
}

func (c *choosing) MemberAddAsLearner(ctx context.Context, peers []string) (*clientv3.MemberAddResponse, error) {
	resp, err := c.Cluster.MemberAddAsLearner(ctx, peers)
	if !c.added {
		c.added = true
		return nil, rpctypes.ErrTimeoutDueToConnectionLost
	}
	return resp, err
}

func (c *choosing) MemberRemove(ctx context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	if c.removed++; c.removed == 1 {
		return nil, rpctypes.ErrTimeoutDueToLeaderFail
	}
	if c.removed == 2 { // raft dropped it for another change
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Cluster.MemberRemove(ctx, id)
}

// A member enters and leaves also while the others choose a leader.
func TestElection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	urls := freeURLs(t, 3)
	start(t, etcd.Config{DataDir: filepath.Join(t.TempDir(), "one"), Name: "one", ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:2]})
	fake := &choosing{}
	dial := func(urls []string) (*clientv3.Client, error) {
		client, err := etcd.Dial(etcd.DialConfig{Servers: urls})
		if err == nil {
			fake.Cluster, client.Cluster = client.Cluster, fake
		}
		return client, err
	}
	c, err := members.Dial(urls[:1], dial, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	initial, err := c.AddLearner(ctx, "two", urls[2])
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(initial, ",")
	slices.Sort(all)
	if want := []string{"one=" + urls[1], "two=" + urls[2]}; !slices.Equal(all, want) {
		t.Errorf("members are %q, want %q", all, want)
	}
	fake.listed = false
	leaving, cancel := context.WithTimeout(ctx, 10*time.Second) // as long as reset waits
	defer cancel()
	if removed, err := c.Remove(leaving, urls[2]); !removed || err != nil {
		t.Errorf("removed: %t, %v", removed, err)
	}
	if !fake.listed || !fake.added || fake.removed < 3 {
		t.Errorf("not all was tried: %+v", fake)
	}
}
